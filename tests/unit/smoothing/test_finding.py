"""Which groups are found in which architecture, and that each fold leaves the function as it was."""

import pytest
import torch
from planting import awaken, data
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2MoeConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import families
from noisescope.sites import Layout, matrix
from noisescope.smoothing.finding import find_groups, moved_by
from noisescope.smoothing.groups import write
from noisescope.smoothing.replaying import block_calls

pytestmark = pytest.mark.usefixtures("one_thread")

LLAMA = {
    "input_layernorm -> q_proj k_proj v_proj",
    "self_attn.v_proj -> o_proj",
    "post_attention_layernorm -> gate_proj up_proj",
    "mlp.up_proj -> down_proj",
}
EXPECTED = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral"), LLAMA),
    "gemma3": (LLAMA - {"post_attention_layernorm -> gate_proj up_proj"})
    | {"pre_feedforward_layernorm -> gate_proj up_proj"},
    "phi3": {
        "input_layernorm -> qkv_proj",
        "self_attn.qkv_proj -> o_proj",
        "post_attention_layernorm -> gate_up_proj",
        "mlp.gate_up_proj -> down_proj",
    },
    "mixtral": {"input_layernorm -> q_proj k_proj v_proj", "self_attn.v_proj -> o_proj"},
    "olmo": {"self_attn.v_proj -> o_proj", "mlp.up_proj -> down_proj"},
    "cohere": {
        "input_layernorm -> q_proj k_proj v_proj gate_proj up_proj",
        "self_attn.v_proj -> o_proj",
        "mlp.up_proj -> down_proj",
    },
    "gpt2": {"ln_1 -> c_attn", "attn.c_attn -> c_proj", "ln_2 -> c_fc"},
    "gptj": {"ln_1 -> q_proj k_proj v_proj fc_in", "attn.v_proj -> out_proj"},
    "gpt_neox": {
        "input_layernorm -> query_key_value",
        "attention.query_key_value -> dense",
        "post_attention_layernorm -> dense_h_to_4h",
    },
    "opt": {
        "self_attn_layer_norm -> q_proj k_proj v_proj",
        "self_attn.v_proj -> out_proj",
        "final_layer_norm -> fc1",
        "fc1 -> fc2",
    },
    "bloom": {
        "input_layernorm -> query_key_value",
        "self_attention.query_key_value -> dense",
        "post_attention_layernorm -> dense_h_to_4h",
    },
    "falcon": {"input_layernorm -> query_key_value dense_h_to_4h", "self_attention.query_key_value -> dense"},
}
LEFT = {
    "mixtral": {("mlp.experts",): "the weights of experts are stacked in one tensor"},
    "olmo": {
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): "input_layernorm has no weight",
        ("mlp.gate_proj", "mlp.up_proj"): "post_attention_layernorm has no weight",
    },
    "gpt2": {("mlp.c_proj",): "not proportional"},
    "gptj": {("mlp.fc_out",): "not proportional"},
    "gpt_neox": {("mlp.dense_4h_to_h",): "not proportional"},
    "bloom": {("mlp.dense_4h_to_h",): "not proportional"},
    "falcon": {("mlp.dense_4h_to_h",): "not proportional"},
}


def found_in(model: nn.Module, family: str = "llama"):
    layout, batch = Layout.of(model), data(family).batches[0]
    text, single = batch.input_ids, batch.input_ids.unique().unsqueeze(1)
    return find_groups(layout, block_calls(model, layout, text), block_calls(model, layout, single))


@pytest.mark.parametrize("family", families.DECODERS)
def test_the_groups_of_a_family(family: str) -> None:
    model = awaken(families.build(family))
    groups, skipped = found_in(model, family)
    for layer in range(families.LAYERS):
        assert {group.name for group in groups if group.layer == layer} == EXPECTED[family]
        reasons = {skip.names: skip.reason for skip in skipped if skip.layer == layer}
        assert reasons.keys() == LEFT.get(family, {}).keys()
        assert all(reason in reasons[names] for names, reason in LEFT.get(family, {}).items())


@pytest.mark.parametrize("family", families.DECODERS)
def test_any_scales_leave_the_logits_alone(family: str) -> None:
    """Every group at once, by scales of three decades, on tokens that nothing was proved on."""
    model = awaken(families.build(family))
    groups, _ = found_in(model, family)
    given = families.tokens(family, rows=3, length=20, seed=7)
    with torch.no_grad():
        before = model(**given).logits
        for group in groups:
            changed = {parameter: parameter.clone() for parameter in group.parameters}
            write(group.folded(10 ** (3 * torch.rand(group.width) - 1.5)))
            assert not any(torch.equal(*pair) for pair in changed.items())
        after = model(**given).logits
    assert (after - before).abs().max() <= 1e-4 * before.std()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_a_wrong_channel_is_seen(family: str) -> None:
    """The proof has teeth: channels that are one off, or the offset of the norm mistaken, move the block."""
    model = awaken(families.build(family))
    layout, ids = Layout.of(model), data(family).batches[0].input_ids
    calls = block_calls(model, layout, ids)
    groups, _ = found_in(model, family)
    for group in groups:
        assert moved_by(group, calls[group.layer]) <= 1e-6
        wrong = [type(group)(**{**vars(group), "channels": group.channels.roll(1)})]
        if group.offset is not None:
            wrong.append(type(group)(**{**vars(group), "offset": 1 - group.offset}))
        assert all(moved_by(other, calls[group.layer]) > 1e-4 for other in wrong)


def test_grouped_queries_share_the_channels_of_a_value() -> None:
    groups, _ = found_in(families.build("llama"))
    group = next(group for group in groups if group.name == "self_attn.v_proj -> o_proj")
    first, second = torch.arange(8), torch.arange(8, 16)
    assert torch.equal(group.channels, torch.cat([first, first, second, second]))
    assert torch.equal(group.gathered(torch.arange(32.0)), torch.cat([torch.arange(8.0, 16), torch.arange(24.0, 32)]))


def test_a_tied_weight_is_left_alone() -> None:
    model = awaken(families.build("llama"))
    one, two = model.model.layers[0].mlp, model.model.layers[1].mlp
    two.up_proj.weight = one.up_proj.weight
    groups, skipped = found_in(model)
    names = {(group.layer, group.name) for group in groups}
    for layer in (0, 1):
        assert (layer, "mlp.up_proj -> down_proj") not in names
        assert (layer, "post_attention_layernorm -> gate_proj up_proj") not in names
    assert (2, "mlp.up_proj -> down_proj") in names
    assert "share a weight" in skipped[0].reason


def test_a_norm_that_the_residual_takes_too_is_left_alone() -> None:
    config = {"apply_residual_connection_post_layernorm": True}
    model = families.build("bloom")
    for block in model.transformer.h:
        block.apply_residual_connection_post_layernorm = config["apply_residual_connection_post_layernorm"]
    groups, skipped = found_in(awaken(model), "bloom")
    assert {group.name for group in groups} == {"self_attention.query_key_value -> dense"}
    assert sum("goes elsewhere too" in skip.reason for skip in skipped) == 2 * families.LAYERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_leak_smaller_than_a_rounding_is_left_alone(dtype: torch.dtype) -> None:
    """A thousandth of the norm goes into the residual: in bfloat16 that moves the block by less than it is rounded."""

    class Leaking(LlamaDecoderLayer):
        def forward(self, hidden_states, **given):
            normed = self.input_layernorm(hidden_states)
            hidden_states = hidden_states + self.self_attn(hidden_states=normed, **given)[0] + 0.001 * normed
            return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    model = awaken(families.build("llama")).to(dtype)
    for layer in model.model.layers:
        layer.__class__ = Leaking
    groups, _ = found_in(model)
    assert {group.name for group in groups} == LLAMA - {"input_layernorm -> q_proj k_proj v_proj"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_routes_experts_too_is_left_alone(dtype: torch.dtype) -> None:
    """It feeds a shared expert, which could be folded, and a router and stacked experts that do little."""
    config = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        Qwen2MoeConfig(**families.CONFIGS["qwen2"].to_diff_dict() | config, shared_expert_intermediate_size=24)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp.experts" not in name:
                parameter.mul_(8)
    groups, skipped = found_in(model.to(dtype).eval())
    assert {group.name for group in groups} == {
        "input_layernorm -> q_proj k_proj v_proj",
        "self_attn.v_proj -> o_proj",
        "mlp.shared_expert.up_proj -> down_proj",
    }
    assert sum("goes elsewhere too" in skip.reason for skip in skipped) == families.LAYERS


def test_a_value_that_is_clipped_is_left_alone() -> None:
    """It is within the clip on this data; scaled, on other data, it would not be."""
    model = awaken(families.build("llama"))
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x).clamp(-500, 500))
    groups, _ = found_in(model)
    names = {(group.layer, group.name) for group in groups}
    assert (0, "mlp.up_proj -> down_proj") in names
    assert (1, "mlp.up_proj -> down_proj") not in names


EXACT = {
    (torch.bfloat16, "llama"): True,
    (torch.bfloat16, "gpt2"): True,
    (torch.bfloat16, "gemma3"): False,  # 1 + w is rounded
    (torch.float16, "llama"): False,  # small weights become smaller than a float16 can be without losing bits
}


@pytest.mark.parametrize(("dtype", "family"), EXACT)
def test_powers_of_two_in_16_bit(dtype: torch.dtype, family: str) -> None:
    torch.manual_seed(0)
    model = awaken(families.build(family)).to(dtype)
    groups, _ = found_in(model, family)
    assert {group.name for group in groups} == EXPECTED[family]
    with torch.no_grad():
        given = families.tokens(family, rows=3, length=20, seed=7)
        before = model(**given).logits
        for group in groups:
            write(group.folded(torch.exp2(torch.randint(-3, 4, (group.width,)).float())))
        after = model(**given).logits
    assert torch.equal(after, before) == EXACT[dtype, family]
    assert (after - before).abs().max() <= 0.2 * before.std()


def test_the_matrix_of_a_linear_is_outputs_by_inputs() -> None:
    model = families.build("gpt2")
    conv, linear = model.transformer.h[0].attn.c_attn, model.lm_head
    assert matrix(conv).shape == (96, 32)
    assert matrix(conv).data_ptr() == conv.weight.data_ptr()
    assert matrix(linear) is linear.weight
