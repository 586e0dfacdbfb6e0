"""Which weights are found, in every family; what is refused."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import families
import odd_models
from noisescope.errors import InputError, ModelError, NothingMatched
from noisescope.quantising import find_weights
from noisescope.quantising.weights import matching
from noisescope.sites import Layout

PLAIN = [name for name in families.DECODERS if name != "mixtral"]


@pytest.mark.parametrize("family", PLAIN)
def test_every_linear_of_the_blocks_and_nothing_else(family: str) -> None:
    model = families.build(family)
    layout = Layout.of(model)
    slowly = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and any(module in set(block.modules()) for block in layout.blocks)
    }
    found = find_weights(layout)
    assert {path: weight.module for path, weight in found.items()} == slowly
    for weight in found.values():
        assert weight.shape[weight.axis] == (weight.module.nx if weight.axis == 0 else weight.module.in_features)
        assert f".{weight.layer}." in weight.path


@pytest.mark.parametrize("family", [name for name in PLAIN if name != "gemma3"])
def test_head_and_embedding_only_if_they_are_asked_for(family: str) -> None:
    layout = Layout.of(families.build(family))
    more = {weight.layer: weight for path, weight in find_weights(layout, include=["head", "embed"]).items()}
    assert {"head", "embed"} <= set(more)
    assert more["head"].size == more["embed"].size == families.VOCAB * families.HIDDEN
    with pytest.raises(InputError, match="did you mean"):
        find_weights(layout, include=["heads"])


def test_an_embedding_that_scales_is_refused() -> None:
    with pytest.raises(ModelError, match="embed: Gemma3TextScaledWordEmbedding computes in a way of its own"):
        find_weights(Layout.of(families.build("gemma3")), include=["embed"])


def test_stacked_experts_are_not_passed_over_in_silence() -> None:
    with pytest.raises(ModelError, match=r"experts\.gate_up_proj: is a stack of 4 matrices in one tensor"):
        find_weights(Layout.of(families.build("mixtral")))


def test_a_parameter_of_several_modules_is_one_weight() -> None:
    model = odd_models.build("zamba2")
    first, second = (model.model.layers[layer].shared_transformer.self_attn.q_proj for layer in (1, 3))
    assert first is not second
    assert first.weight is second.weight
    found = find_weights(Layout.of(model))
    assert len({id(weight.value) for weight in found.values()}) == len(found)
    shared = found["model.layers.1.shared_transformer.self_attn.q_proj"]
    assert shared.modules == (first, second)
    assert "model.layers.3.shared_transformer.self_attn.q_proj" not in found


def test_a_linear_that_computes_something_else_is_none() -> None:
    class Odd(nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return super().forward(given).relu()

    model = families.build("llama")
    odd = Odd(families.HIDDEN, 48)
    model.model.layers[0].mlp.gate_proj = odd
    assert odd not in {weight.module for weight in find_weights(Layout.of(model)).values()}


def test_a_quantised_model_is_refused() -> None:
    model = families.build("llama")
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ModelError, match=r"is quantised already \(gptq\)") as caught:
        find_weights(Layout.of(model))
    assert caught.value.exit_code == 4
    model = families.build("llama")
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ModelError, match=r"quantised already \(model\.layers\.0\.mlp\.up_proj\.weight is int8\)"):
        find_weights(Layout.of(model))


def test_patterns() -> None:
    paths = ["model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"]
    assert matching(["*.mlp"], paths, what="keep") == {paths[0], paths[2]}
    assert matching(["re:.*layers.1.*", "*q_proj"], paths, what="keep") == {paths[1], paths[2]}
    assert matching([], paths, what="keep") == frozenset()
    with pytest.raises(NothingMatched, match='keep: "mlp9" matches no weight'):
        matching(["mlp9"], paths, what="keep")
    with pytest.raises(InputError, match=r'keep: "re:\(" is not a regular expression'):
        matching(["re:("], paths, what="keep")


def test_a_text_is_no_list() -> None:
    with pytest.raises(InputError, match=r'^keep: got "\*\.mlp", expected a list of patterns$'):
        matching("*.mlp", ["model.layers.0.mlp.up_proj"], what="keep")
    with pytest.raises(InputError, match=r'^include: got "head", expected a list of names$'):
        find_weights(Layout.of(families.build("llama")), include="head")
