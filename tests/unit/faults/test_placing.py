"""From what a person writes to the operator that breaks; and a block's output in every family."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from families import DECODERS, FAMILIES, build, tokens
from noisescope.errors import NoisescopeError
from noisescope.faults import FaultSimulator, parse_fault
from noisescope.injection import Call, Watch, survey
from noisescope.sites import Layout, Site

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return build("llama")


# --- what a person writes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1", "model.layers.1.residual.1"),
        ("0", "model.layers.0.residual.1"),
        ("1.linear", "model.layers.1.mlp.down_proj.linear"),
        ("1.residual", "model.layers.1.residual"),
        ("1.silu", "model.layers.1.mlp.act_fn.silu"),
        ("1.rms_norm", "model.layers.1.post_attention_layernorm.rms_norm"),
        ("1.input_layernorm.rms_norm", "model.layers.1.input_layernorm.rms_norm"),
        ("1.self_attn.q_proj.linear", "model.layers.1.self_attn.q_proj.linear"),
        ("1.q_proj.linear", "model.layers.1.self_attn.q_proj.linear"),
        ("1.mlp.down_proj.linear", "model.layers.1.mlp.down_proj.linear"),
        ("1.softmax", "model.layers.1.self_attn.softmax"),
        ("1.matmul", "model.layers.1.self_attn.matmul"),
        ("1.attention", "model.layers.1.self_attn.attention"),
        ("1.mlp.mul", "model.layers.1.mlp.mul"),
        ("embed", "model.embed_tokens.embedding"),
        ("embed.embedding", "model.embed_tokens.embedding"),
        ("final_norm", "model.norm.rms_norm"),
        ("final_norm.rms_norm", "model.norm.rms_norm"),
        ("head", "lm_head.linear"),
        ("head.linear", "lm_head.linear"),
        ("lm_head.linear", "lm_head.linear"),
        ("model.layers.1.mlp.down_proj.linear", "model.layers.1.mlp.down_proj.linear"),
        ("model.layers.1.mlp.down_proj.linear.0", "model.layers.1.mlp.down_proj.linear.0"),
        ("model.layers.1.mlp.down_proj.linear.0.forward", "model.layers.1.mlp.down_proj.linear.0"),
        ("model.layers.1.self_attn.matmul.1.forward", "model.layers.1.self_attn.matmul.1"),
        ("model.layers.1.residual.0.forward", "model.layers.1.residual.0"),
    ],
)
def test_a_place_is_found(llama, text, name):
    assert FaultSimulator(llama, text, "gain").target.name == name


def test_every_listed_site_is_a_place(llama):
    sites = [site for site in survey(llama).sites if site.layer in (1, "embed", "head")]
    assert len(sites) > 15
    for site in sites:
        target = FaultSimulator(llama, site.name, "gain").target
        assert target.holds(site)
        assert target.name == site.name.removesuffix(".forward")


def test_a_module_that_is_called_like_a_layer_is_found_by_its_full_name():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(4, 4))
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))])

        def forward(self, hidden: Tensor) -> Tensor:
            hidden = self.embed(hidden)
            for block in self.blocks:
                hidden = block(hidden)
            return hidden

    inputs = {"hidden": torch.ones(2, 4)}
    assert FaultSimulator(Model(), "embed.0.linear", "gain", inputs=inputs).target.name == "embed.0.linear"
    assert FaultSimulator(Model(), "embed.0.linear.0", "gain", inputs=inputs).target.name == "embed.0.linear.0"


def test_a_head_that_is_cast_afterwards_is_its_product():
    model = build("llama").to(torch.bfloat16)
    model.register_forward_hook(lambda _model, _args, output: output.logits.float())
    assert FaultSimulator(model, "head", "gain").target.name == "lm_head.linear"


def test_attention_is_the_kernel_or_its_second_product():
    assert FaultSimulator(build("llama", attn="sdpa"), "1.attention", "gain").target.operators == ("attention",)
    eager = FaultSimulator(build("llama", attn="eager"), "1.attention", "gain").target
    assert (eager.operator, eager.call) == ("matmul", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("saturation:0.2@15.linear", "saturation:0.2@15.linear"),
        ("saturation@15", "saturation:0.2@15"),
        (" bit_flip:1e-4@head ", "bit_flip:0.0001@head"),
        ("gain:-0.5@0,sparsity=0.1,p=0.5", "gain:-0.5@0,sparsity=0.1,p=0.5"),
        ("gain:0.123456789@0,seed=7", "gain:0.123456789@0,seed=7"),
        ("gain:1e-7@0,seed=0", "gain:1e-07@0"),
        ("dead_zone:3@0,absolute", "dead_zone:3@0,absolute"),
        ("wrong_rounding:4@a.b.linear.0.forward", "wrong_rounding:4@a.b.linear.0.forward"),
    ],
)
def test_a_fault_in_writing(text, expected):
    fault = parse_fault(text)
    assert str(fault) == expected
    assert parse_fault(str(fault)) == fault


# --- what cannot be meant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "exit_code", "says"),
    [
        ("gain@3", 3, "simulate: 3 is out of range, the model has 0 to 2"),
        ("gain@-1", 3, "simulate: -1 is out of range, the model has 0 to 2"),
        ("gain@99.linear", 3, "simulate: 99 is out of range"),
        ("gain@1.gelu", 3, 'unknown operator of layer 1 "gelu"'),
        ("gain@1.liner", 3, 'did you mean "linear"'),
        ("gain@1.mlp.up.linear", 3, 'no module of layer 1 ends in "mlp.up"'),
        ("gain@head.softmax", 3, 'unknown operator of layer head "softmax"'),
        ("gain@nowhere.linear", 3, 'no site "nowhere.linear"; `noisescope sites --all` lists them'),
        ("gain@model.layers.1.residual.7.forward", 3, "no site"),
        ("gain", 2, 'simulate: got "gain", expected kind:magnitude@layer'),
        ("", 2, 'simulate: got "", expected'),
        ("@1", 2, "expected kind:magnitude@layer"),
        ("gain:@1", 2, "expected kind:magnitude@layer"),
        ("gain:1:2@1", 2, "expected kind:magnitude@layer"),
        ("gain@1@2", 2, "expected kind:magnitude@layer"),
        ("gain@1,", 2, "expected kind:magnitude@layer"),
        ("gain:much@1", 2, 'simulate: magnitude: got "much", expected a number'),
        ("gain@1,often", 2, 'got "often", expected sparsity=, p=, seed= or absolute'),
        ("gain@1,p=x", 2, 'simulate: p: got "x", expected a number'),
        ("gain@1,\x1b[2J", 2, r'got "\x1b[2J", expected'),
        ("gane:0.1@1", 2, 'unknown fault "gane", did you mean "gain"?'),
        ("gain:-1@1", 2, "gain: got magnitude -1, expected a number above -1"),
        ("gain:nan@1", 2, "gain: got magnitude nan"),
        ("noise:inf@1", 2, "noise: got magnitude inf, expected a number above 0"),
        ("noise:0@1", 2, "noise: got magnitude 0, expected a number above 0"),
        ("saturation:1.5@1", 2, "saturation: got magnitude 1.5, expected a number above 0, at most 1"),
        ("bit_flip:2@1", 2, "bit_flip: got magnitude 2, expected a number above 0, at most 1"),
        ("stuck_at:1.01@1", 2, "at most 1"),
        ("spike:101@1", 2, "at most 100"),
        ("wrong_rounding:0@1", 2, "wrong_rounding: got magnitude 0, expected a number of bits from 1 to 52"),
        ("wrong_rounding:2.5@1", 2, "expected a number of bits"),
        ("wrong_rounding:24@1", 2, "wrong_rounding: got magnitude 24, expected a number of bits from 1 to 23"),
        ("low_precision_accumulate:0@1.linear", 2, "expected a number of bits"),
        ("low_precision_accumulate:inf@1.linear", 2, "expected a number of bits"),
        ("low_precision_accumulate:7@1", 2, "exists at linear matmul bmm, not at residual"),
        ("lut_exp:0.1@1.linear", 2, "simulate: lut_exp exists at softmax, not at linear"),
        ("gain@1,sparsity=0", 2, "sparsity: got 0, expected a share above 0, at most 1"),
        ("gain@1,sparsity=1.5", 2, "sparsity: got 1.5"),
        ("gain@1,sparsity=nan", 2, "sparsity: got nan"),
        ("gain@1,p=0", 2, "p: got 0, expected a share above 0, at most 1"),
        ("gain@1,p=2", 2, "p: got 2"),
        ("gain@1,absolute", 2, "absolute: gain has no threshold; only dead_zone and saturation have"),
        ("gain@1,seed=99999999999999999999", 2, "seed: got 99999999999999999999"),
        ("gain@1,seed=-1", 2, "expected sparsity=, p=, seed= or absolute"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(llama, text, exit_code, says):
    with pytest.raises(NoisescopeError) as refused:
        FaultSimulator(llama, text)
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert refused.value.exit_code == exit_code


def test_a_model_without_such_an_output():
    with pytest.raises(NoisescopeError, match="the model computes nothing that is the output of final_norm") as refused:
        FaultSimulator(build("bert"), "final_norm", "gain", inputs=tokens("bert"))
    assert refused.value.exit_code == 3


def test_bits_of_a_narrow_dtype():
    model = build("llama").to(torch.bfloat16)
    FaultSimulator(model, "1", "wrong_rounding", 7)
    with pytest.raises(NoisescopeError, match="from 1 to 7"):
        FaultSimulator(model, "1", "wrong_rounding", 8)
    FaultSimulator(model, "1.linear", "low_precision_accumulate", 23)  # its accumulator is a float32
    with pytest.raises(NoisescopeError, match="from 1 to 23"):
        FaultSimulator(model, "1.linear", "low_precision_accumulate", 24)


# --- the output of a block, in every family ---------------------------------------------------------------------


class Values:
    """An observer that keeps a copy of every value that a device gives."""

    def __init__(self) -> None:
        self.seen: dict[Site, Tensor] = {}

    def wants(self, *_: Any) -> bool:
        return True

    def after(self, call: Call, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():  # experts make empty integers
            self.seen[call.site] = value.detach().clone()
        return value


@contextmanager
def outputs_of(layout: Layout) -> Iterator[dict[int, Tensor]]:
    found: dict[int, Tensor] = {}

    def hook(layer: int):
        return lambda _block, _args, output: found.update({layer: tree_leaves(output)[0].detach().clone()})

    handles = [block.register_forward_hook(hook(layer)) for layer, block in enumerate(layout.blocks)]
    yield found
    for handle in handles:
        handle.remove()


def run(model: nn.Module, family: str, layout: Layout) -> tuple[dict[int, Tensor], dict[Site, Tensor]]:
    values = Values()
    with outputs_of(layout) as outputs, Watch(values, layout=layout, whole=True), torch.no_grad():
        model(**tokens(family))
    return outputs, values.seen


def check_block_output(model: nn.Module, family: str, layer: int) -> None:
    """The block returns the faulted value of its last call; no other value of it, or before it, is touched."""
    layout, inputs = Layout.of(model), tokens(family)
    outputs, values = run(model, family, layout)
    with FaultSimulator(model, layer, "gain", 0.5, inputs=inputs) as fault:
        wrong, touched = run(model, family, layout)
    assert torch.equal(wrong[layer], outputs[layer] * 1.5)
    assert fault.elements == outputs[layer].numel()
    assert all(torch.equal(wrong[before], outputs[before]) for before in range(layer))
    last = [site for site in values if fault.target.holds(site)]
    assert len(last) == 1
    assert torch.equal(touched[last[0]], values[last[0]] * 1.5)
    inside = [site for site in values if site.layer == layer and not fault.target.holds(site)]
    until = list(values).index(last[0])
    assert len(inside) > 5
    assert all(torch.equal(touched[site], values[site]) for site in inside if list(values).index(site) < until)
    residuals = [site for site in inside if site.operator == "residual"]
    assert all(torch.equal(touched[site], values[site]) for site in residuals)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_is_what_its_block_returns(family):
    model = build(family)
    for layer in (0, len(Layout.of(model).blocks) - 1):
        check_block_output(model, family, layer)


@pytest.mark.parametrize("family", DECODERS)
def test_embed_is_what_the_first_block_gets_and_head_what_the_model_gives(family):
    model, inputs, given = build(family), tokens(family), []
    block = Layout.of(model).blocks[0]
    handle = block.register_forward_pre_hook(
        lambda _block, args, kwargs: given.append(tree_leaves((args, kwargs))[0].clone()), with_kwargs=True
    )
    with torch.no_grad():
        clean = model(**inputs).logits
        with FaultSimulator(model, "embed", "gain", 0.5, inputs=inputs):
            model(**inputs)
        assert torch.equal(given[-1], given[0] * 1.5)
        handle.remove()
        with FaultSimulator(model, "head", "gain", 0.5, inputs=inputs):
            assert torch.equal(model(**inputs).logits, clean * 1.5)
        with FaultSimulator(model, "final_norm", "gain", 1.0, inputs=inputs) as fault:
            torch.testing.assert_close(model(**inputs).logits, clean * 2)
        assert fault.target.operator.endswith("_norm")


def test_a_mutant_that_takes_every_residual_for_the_output_is_caught(monkeypatch):
    from noisescope.faults import placing

    real = placing.Survey.target
    monkeypatch.setattr(placing.Survey, "target", lambda self, site, *, only=False: real(self, site))
    with pytest.raises(AssertionError):
        check_block_output(build("llama"), "llama", 1)
