"""What a verdict rests on: results of every kind are looked at, what is not is said, the user's own is left alone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from families import build, tokens
from foreign.device import Device
from noisescope.errors import InputError, NonFinite, NothingMatched
from noisescope.injection import Call, plain_name
from noisescope.locating import Verdict, locate
from trained import fixture

# --- results of every kind --------------------------------------------------------------------------------------


class Broken(Device):
    """A device on which one function comes out wrong, every time."""

    def __init__(self, model: nn.Module, name: str, change: Callable[[Any], Any]) -> None:
        super().__init__(model)
        self._name, self._change, self.struck = name, change, 0

    def after(self, call: Call, value: Any) -> Any:
        if plain_name(call.function) != self._name:
            return value
        with torch._C.DisableTorchFunction():
            self.struck += 1
            return self._change(value)


class Body(nn.Module):
    """A block of one's own around a function."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.compute = nn.Linear(8, 8), compute

    def forward(self, x: Tensor) -> Tensor:
        return x + self.compute(self.mix(x))


class Model(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(Body(compute) for _ in range(2))

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


def _assigned(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[..., 1:] = x[..., :-1]
    return y


def _turned(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(-2)


RESULTS: dict[str, tuple[Callable[[Tensor], Tensor], str, Callable[[Any], Any], str]] = {
    "largest with indices": (
        lambda x: x - x.max(-1, keepdim=True)[0],
        "max",
        lambda v: (v[0] * 1.5, v[1]),
        "faulty",
    ),
    "top k": (lambda x: torch.topk(x, 8, -1)[0], "topk", lambda v: (v[0].flip(-1), v[1]), "faulty"),
    "comparison": (lambda x: x * (x > 0), "gt", lambda v: ~v, "faulty"),
    "positions": (lambda x: x * torch.arange(x.shape[-1]), "arange", lambda v: v + 1, "faulty"),
    "assignment": (_assigned, "setitem", lambda v: v * 1.5, "faulty"),
    "complex numbers": (_turned, "mul", lambda v: v * 1.5, "inconclusive"),
    "moments": (lambda x: x - torch.var_mean(x, -1, keepdim=True)[1], "var_mean", lambda v: (v[0], v[1] * 1.5), ""),
    "indices": (lambda x: x.gather(-1, x.argsort(-1)), "argsort", lambda v: v.flip(-1), "inconclusive"),
}


@pytest.mark.parametrize("result", RESULTS)
def test_a_wrong_result_of_any_kind_is_not_healthy(result: str) -> None:
    compute, name, change, outcome = RESULTS[result]
    model, ids = Model(compute).eval(), torch.arange(12).view(2, 6)
    assert locate(model, ids).healthy
    with Broken(model, name, change) as device:
        verdict = locate(model, ids)
    assert device.struck
    assert verdict.outcome == (outcome or "inconclusive")
    if verdict.outcome == "faulty":
        assert verdict.sites[0].operator == name
    else:
        assert name in verdict.missing[0]


def test_what_draws_random_numbers_is_named_and_not_accused() -> None:
    model = Model(lambda x: nn.functional.dropout(x, 0.5, True) + torch.normal(torch.zeros_like(x), 0.1)).eval()
    verdict = locate(model, torch.arange(12).view(2, 6))
    assert verdict.healthy
    assert any("4 calls draw random numbers" in line for line in verdict.sections["verdict"]["not_covered"])


# --- no host, no health -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"method": "repeat"}, {"method": "identities"}, {"budget": 2}], ids=str)
def test_a_method_that_cannot_see_everything_never_says_healthy(options: dict[str, Any]) -> None:
    verdict = locate(build("llama"), tokens(), **options)
    assert verdict.outcome == "inconclusive"
    assert "no operator was computed on the host" in verdict.missing[0]


def test_what_was_left_out_is_said() -> None:
    lines = locate(build("llama"), tokens(), method="host", runs=1).sections["verdict"]["not_covered"]
    assert any("comes and goes" in line for line in lines)
    assert any("identities were left out by --method host" in line for line in lines)


# --- the user's own ---------------------------------------------------------------------------------------------


def test_a_call_that_gives_its_argument_back_is_no_place_for_a_fault() -> None:
    model = build("llama", attn="sdpa").to(torch.bfloat16)
    before = copy.deepcopy({**dict(model.named_parameters()), **dict(model.named_buffers())})
    for nothing in ("bias:0.3@1.contiguous", "gain:0.3@0.to"):
        with pytest.raises(NothingMatched, match="unknown operator"):
            locate(model, tokens(), simulate=nothing)
    truth = locate(model, tokens(), simulate="bias:0.3@embed.to").sections["truth"][0]  # some of its calls do cast
    assert truth["rank"] == 1
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert all(torch.equal(value, before[name]) for name, value in after.items())


@pytest.mark.parametrize(
    ("family", "path"), [("llama", "model.layers.1.input_layernorm"), ("gpt2", "transformer.h.1.mlp.act")]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_the_user_are_neither_faults_nor_called_again(family: str, path: str, when: str) -> None:
    model, called = build(family), []

    def steer(_module: nn.Module, args: Any, *output: Any) -> Any:
        called.append(1)
        return output[0] * 1.5 if output else (args[0] * 1.5, *args[1:])

    place = model.get_submodule(path)
    handle = place.register_forward_hook(steer) if when == "after" else place.register_forward_pre_hook(steer)
    assert locate(model, tokens(family)).healthy
    assert len(called) == 1
    with torch.no_grad():
        model(**tokens(family))
    assert len(called) == 2
    handle.remove()


def test_a_cache_is_not_filled_twice() -> None:
    model = build("llama")
    with torch.no_grad():
        cache = model(torch.arange(1, 5).view(1, 4), use_cache=True).past_key_values
    inputs = {"input_ids": torch.arange(5, 9).view(1, 4), "past_key_values": cache, "use_cache": True}
    assert locate(model, inputs, simulate="gain:0.1@1.linear").sites
    assert cache.get_seq_length() == 4


@pytest.mark.parametrize("ids", [[1, 2, 3], [[1, 2], [3, 4]]], ids=str)
def test_token_ids_may_be_lists(ids: list) -> None:
    assert locate(build("llama"), {"input_ids": ids}, budget=6).healthy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompts": {}}, "got no inputs"),
        ({"prompts": torch.ones(2, 3)}, "whole numbers"),
        ({"budget": "3"}, "budget: got 3"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused_in_a_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        locate(build("llama"), **{"prompts": tokens(), **given})


# --- numbers at the edge of their range -------------------------------------------------------------------------


def _scaled(family: str, factor: float, only: str = "") -> nn.Module:
    model = build(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(factor if only in name else 1.0)
    return model


def test_an_overflow_of_a_healthy_device_is_no_fault_of_it() -> None:
    model, _ = fixture("llama")
    with torch.no_grad():
        model.lm_head.weight = nn.Parameter(model.lm_head.weight * 1e4)
    with pytest.raises(NonFinite, match="lm_head"):
        locate(model.half(), torch.arange(3, 15).view(2, 6))


@pytest.mark.parametrize("family", ["llama", "qwen3", "cohere"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_that_underflow_are_healthy(family: str, dtype: torch.dtype) -> None:
    verdict = locate(_scaled(family, 1e-6, "proj").to(dtype), tokens(family))
    assert verdict.healthy, str(verdict)


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "opt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_large_biases_are_healthy(family: str, dtype: torch.dtype) -> None:
    verdict = locate(_scaled(family, 300, "bias").to(dtype), tokens(family))
    assert verdict.healthy, str(verdict)


def test_a_product_of_huge_numbers_is_still_judged() -> None:
    model = Model(lambda x: x).eval()
    with torch.no_grad():
        model.embed.weight *= 1e21
    ids = torch.arange(12).view(2, 6)
    assert locate(model, ids).healthy
    assert locate(model, ids, simulate="gain:0.5@1.mix.linear", method="host").sections["truth"][0]["rank"] == 1


# --- places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [0, 1])
def test_one_product_inside_a_fused_kernel_is_named_by_itself(call: int) -> None:
    verdict = locate(build("llama", attn="sdpa"), tokens(), simulate=f"gain:0.2@model.layers.1.self_attn.matmul.{call}")
    assert verdict.sections["truth"][0]["rank"] == 1
    assert verdict.sites[0].operator == "matmul"


def test_attention_by_its_full_name_where_it_is_no_kernel() -> None:
    verdict = locate(build("llama", attn="eager"), tokens(), simulate="bias:0.3@model.layers.0.self_attn.attention")
    truth = verdict.sections["truth"][0]
    assert not truth["inert"]
    assert truth["rank"] == 1


def test_noise_below_the_rounding_of_a_long_sum_is_seen_by_a_known_product() -> None:
    verdict = locate(build("llama"), tokens(), simulate="noise:1e-6@1.mlp.up_proj.linear")
    assert verdict.sections["truth"][0]["rank"] == 1


def test_a_fault_that_strikes_now_and_then_has_the_name_of_what_it_does() -> None:
    kinds = {_intermittent(seed).sites[0].kind for seed in range(8) if _intermittent(seed).sites}
    assert "zeroing" in kinds


def _intermittent(seed: int) -> Verdict:
    fault = f"dead_zone:0.3@1.mlp.up_proj.linear,p=0.5,seed={seed}"
    return locate(build("llama"), tokens(), simulate=fault, method="host", runs=4)


def test_a_fault_that_struck_only_a_repetition_is_said_to_be_found() -> None:
    for seed in range(30):
        verdict = _intermittent(seed)
        truth = verdict.sections["truth"][0]
        if truth["inert"] and truth["rank"]:
            assert "rank 1 (it struck only when asked again)" in verdict.to_markdown()
            return
    raise AssertionError("no such seed")


def test_a_stored_buffer_that_changed_is_named(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    model = Model(lambda x: x).eval()
    model.layers[1].register_buffer("offset", torch.ones(8))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    model.layers[1].offset[3] = 1e3
    verdict = locate(model, torch.arange(12).view(2, 6), checkpoint=tmp_path)
    assert verdict.sites[0].name == "layers.1.offset"


# --- cost -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [(), "gain:0.3@1.attention"], ids=["healthy", "faulty"])
def test_passes_are_counted_inside_fused_kernels_too(fault: Any) -> None:
    model, inputs = build("llama", attn="sdpa"), {"input_ids": torch.arange(96).view(2, 48) % 60 + 3}
    with FlopCounterMode(display=False) as bare, torch.no_grad():
        model(**inputs)
    with FlopCounterMode(display=False) as counted:
        verdict = locate(model, inputs, simulate=fault)
    said = verdict.sections["cost"]["forward_pass_equivalents"]
    survey = 2 if fault else 0
    assert said == pytest.approx(counted.get_total_flops() / bare.get_total_flops() - survey, rel=0.15)
    assert said < 20
