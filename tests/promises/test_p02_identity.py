"""P2: scale 0, and looking without touching, give logits, loss and gradients bit-identical to the clean run.

The clean run is the one with the same attention path. An eager model has one path only, so there everything is compared
with the plain run. Where softmax or the products of a fused attention are looked at, the engine computes it in steps,
and the clean run is those steps with nobody in them.
"""

import contextlib
from functools import cache

import pytest
import torch
from digests import bits
from torch import nn

import noisescope as ns
from families import build, tokens
from noisescope.injection import Injection, Watch
from noisescope.injection.injecting import BY_HAND
from noisescope.noise import NOISES, make_noise
from noisescope.operators import OPERATORS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPENS_ATTENTION = ("matmul", "softmax")
HOMES = {"bmm": "bloom", "gelu": "gpt2", "layer_norm": "gpt2"}
"""families that compute what Llama does not"""


class Looks:
    """An observer that wants certain operators and changes nothing, as a capture does."""

    def __init__(self, *operators: str, phases: tuple[str, ...] = ("forward", "backward")) -> None:
        self.operators, self.phases, self.seen = operators, phases, 0

    def wants(self, layer, operator, module, phase):
        return operator in self.operators and phase in self.phases

    def forward(self, sites, value, *, step, owned):
        self.seen += 1
        return value

    def backward(self, site, grad, *, step, part):
        self.seen += 1
        return grad


@cache
def model_of(family: str, dtype: torch.dtype, attn: str) -> nn.Module:
    """One model per kind, shared by the tests of this file: none of them may change it."""
    return build(family, attn=attn).to(dtype)


def run(model: nn.Module, *, family: str = "llama") -> dict[str, str]:
    """Bits of logits, loss and every gradient."""
    inputs = tokens(family)
    output = model(**inputs, labels=inputs["input_ids"], use_cache=False)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(output.loss, parameters, allow_unused=True)
    found = {f"gradient {name}": bits(gradient) for name, gradient in zip(names, gradients, strict=True)}
    return {"logits": bits(output.logits), "loss": bits(output.loss), **found}


@cache
def clean(family: str, dtype: torch.dtype, attn: str, opened: tuple[str, ...] = (), phases=("forward",)) -> dict:
    """The clean run; with `opened`, the one in which these operators are computed in the open."""
    model = model_of(family, dtype, attn)
    with Watch(Looks(*opened, phases=phases), model) if opened else contextlib.nullcontext():
        return run(model, family=family)


def check_identity(expected: dict[str, str], model: nn.Module, noise, *, family="llama", calls=True, **where) -> None:
    """An injection of this noise gives exactly what was expected, and did come by."""
    with ns.inject(model, noise, **where) as injection:
        found = run(model, family=family)
    assert found == expected
    assert bool(injection.stats.calls()) == calls
    assert injection.stats.elements == 0


def silent(name: str):
    """The registered noise of that name at scale 0."""
    return make_noise(name, 0.0)


# --- every noise x operator x dtype -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_scale_zero_is_the_plain_run(operator, dtype):
    family = HOMES.get(operator, "llama")
    model, expected = model_of(family, dtype, "eager"), clean(family, dtype, "eager")
    for name in NOISES:
        check_identity(expected, model, silent(name), family=family, operators=operator, phases="both")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator", [name for name in OPERATORS if name not in OPENS_ATTENTION])
def test_scale_zero_keeps_the_fused_kernel_where_it_can(operator, dtype):
    family = HOMES.get(operator, "llama")
    attn = "eager" if family == "bloom" else "sdpa"
    model, expected = model_of(family, dtype, attn), clean(family, dtype, attn)
    check_identity(expected, model, ns.RelativeGaussian(0), family=family, operators=operator, phases="both")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator", OPENS_ATTENTION)
def test_scale_zero_in_steps_is_the_steps_with_nobody_in_them(operator, dtype):
    model = model_of("llama", dtype, "sdpa")
    for phases in (("forward",), ("forward", "backward")):
        expected = clean("llama", dtype, "sdpa", (operator,), phases)
        for name in NOISES:
            check_identity(expected, model, silent(name), operators=operator, phases=phases)
        for seed in (1, 2):
            check_identity(expected, model, ns.BitFlip(0), operators=operator, phases=phases, seed=seed, trial=seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator", OPENS_ATTENTION)
def test_noise_on_gradients_alone_leaves_the_fused_value(operator, dtype):
    model, plain = model_of("llama", dtype, "sdpa"), clean("llama", dtype, "sdpa")
    for scale in (0.0, 0.1):
        with ns.inject(model, ns.RelativeGaussian(scale), operators=operator, phases="backward") as injection:
            found = run(model)
        assert (found["logits"], found["loss"]) == (plain["logits"], plain["loss"])
        assert injection.stats.calls(phase="backward") > 0
        assert (found == clean("llama", dtype, "sdpa", (operator,), ("backward",))) == (scale == 0)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "opt", "falcon", "gemma3", "gpt_neox"])
def test_all_operators_at_once_in_every_family(family):
    model, expected = model_of(family, torch.float32, "eager"), clean(family, torch.float32, "eager")
    check_identity(expected, model, ns.StuckAt(0), family=family, phases="both")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_trained_models(request, name):
    model = request.getfixturevalue(name)
    expected = run(model)
    operators = [operator for operator in OPERATORS if operator not in OPENS_ATTENTION]
    check_identity(expected, model, ns.StuckAt(0), operators=operators, phases="both")


# --- other ways of doing nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [{"operators": []}, {"layers": []}, {"modules": []}, {"phases": []}])
def test_an_empty_selection_is_the_plain_run(nothing):
    model, expected = model_of("llama", torch.float32, "sdpa"), clean("llama", torch.float32, "sdpa")
    check_identity(expected, model, ns.RelativeGaussian(0.5), calls=False, **nothing)


def test_multipliers_of_zero_are_scale_zero():
    model, expected = model_of("llama", torch.float32, "eager"), clean("llama", torch.float32, "eager")
    noise = ns.RelativeGaussian(0.5)
    check_identity(expected, model, noise, operators="linear", operator_scales={"linear": 0}, phases="both")
    check_identity(expected, model, noise, layers=[0, 1], layer_scales={0: 0, 1: 0}, phases="both")


def test_nested_injections_at_scale_zero():
    model, expected = model_of("llama", torch.float32, "eager"), clean("llama", torch.float32, "eager")
    with ns.inject(model, ns.StuckAt(0), phases="both"), ns.inject(model, ns.BitFlip(0), phases="both"):
        assert run(model) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_looking_changes_nothing(attn, dtype):
    model, expected = model_of("llama", dtype, attn), clean("llama", dtype, attn)
    operators = [name for name in OPERATORS if attn == "eager" or name not in OPENS_ATTENTION]
    values, gradients = Looks(*operators, phases=("forward",)), Looks(*(set(operators) - BY_HAND))
    for looks in (values, gradients):
        with Watch(looks, model):
            assert run(model) == expected
        assert looks.seen > 30


def test_looking_at_the_gradient_of_a_hand_written_norm_changes_its_last_bits_at_most():
    """The one limit: its input's gradient is summed inside the norm before it meets the residual's."""
    model, inputs = model_of("llama", torch.float32, "eager"), tokens()
    parameters = list(model.parameters())
    plain = torch.autograd.grad(model(**inputs, labels=inputs["input_ids"]).loss, parameters)
    with Watch(Looks("rms_norm"), model):
        looked = torch.autograd.grad(model(**inputs, labels=inputs["input_ids"]).loss, parameters)
    for a, b in zip(plain, looked, strict=True):
        assert (a - b).norm() <= 1e-6 * a.norm()


# --- able to fail -----------------------------------------------------------------------------------------------


def noise_runs_at_scale_zero(monkeypatch):
    monkeypatch.setattr(Injection, "_disturbs", lambda self, site, value: value.is_floating_point())


def values_are_rounded_on_the_way(monkeypatch):
    monkeypatch.setattr(
        Injection, "forward", lambda self, sites, value, **_: value + value.detach().abs().max() * 2**-23
    )


def gradients_are_rounded_on_the_way(monkeypatch):
    monkeypatch.setattr(Injection, "backward", lambda self, site, grad, **_: grad * (1 + 2**-20))


@pytest.mark.parametrize(
    "mutant", [noise_runs_at_scale_zero, values_are_rounded_on_the_way, gradients_are_rounded_on_the_way]
)
def test_the_mutants_are_caught(monkeypatch, mutant):
    expected = clean("llama", torch.float32, "eager")
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_identity(
            expected, model_of("llama", torch.float32, "eager"), ns.StuckAt(0), operators="linear", phases="both"
        )
