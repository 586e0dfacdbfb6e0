"""P8: the dose that is reported is the dose that was applied, within 2% of the request at a million elements."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import format_oracles
import noisescope as ns
from noisescope.errors import DoseVanished
from noisescope.injection import Injection, InjectionStats
from noisescope.injection.injecting import Scales
from noisescope.keys import Key
from noisescope.noise import NOISES, Noise, make_noise
from noisescope.noise.formats import FORMATS

MILLION = 10**6
TOLERANCE = 0.02

REQUESTS = {"bit_flip": 5e-2, "stuck_at": 1e-2}
"""shares of elements, of which 2% are four standard errors at a million; the others are asked for 5%, and number
formats, whose error is what it is, for all of it"""
DENSE = ("relative_gaussian", "absolute_gaussian", "uniform", "systematic_bias", "relative_bias")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rms(values: Tensor) -> float:
    return math.sqrt(values.square().mean().item())


def share_changed(before: Tensor, after: Tensor) -> float:
    width = {4: torch.int32, 2: torch.int16}[before.element_size()]
    return (before.view(width) != after.view(width)).double().mean().item()


def relative(before: Tensor, after: Tensor) -> Tensor:
    old, new = before.double(), after.double()
    return ((new - old) / old)[old != 0]


TRUTHS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "relative_gaussian": lambda old, new: rms(relative(old, new)),
    "absolute_gaussian": lambda old, new: rms(new.double() - old.double()),
    "uniform": lambda old, new: math.sqrt(3) * rms(relative(old, new)),
    "systematic_bias": lambda old, new: ((new.double() - old.double()) * old.double().sign()).mean().item(),
    "relative_bias": lambda old, new: (relative(old, new) * old[old != 0].double().sign()).mean().item(),
    "bit_flip": share_changed,
    "stuck_at": lambda old, new: ((new == 0) & (old != 0)).double().mean().item(),
}
"""what was done, from the tensors alone and by the definitions of SPEC 2.2: nothing of the code under test"""


def of_a_format(name: str) -> Callable[[Tensor, Tensor], float]:
    """The share of the format's error, as other libraries have it, that a tensor got: by least squares."""

    def share(before: Tensor, after: Tensor) -> float:
        old = before.float().view(-1, before.shape[-1])
        full = (format_oracles.usual(name, old) - old).double()
        done = (after.float().view_as(old) - old).double()
        return (full * done).sum().item() / full.square().sum().item()

    return share


TRUTHS |= {name: of_a_format(name) for name in FORMATS}


class Toy(nn.Module):
    """One block with one linear that makes a million values in a call."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Module()
        block.linear = nn.Linear(16, 1000)
        block.forward = lambda hidden: block.linear(hidden)
        self.layers = nn.ModuleList([block])

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layers[0](hidden)


def noise_of(name: str) -> Noise:
    return make_noise(name, REQUESTS.get(name, 0.05 if name in DENSE else 1.0))


def check_dose(noise: Noise, dtype: torch.dtype) -> None:
    """Requested, reported and real dose of a linear's million outputs agree."""
    torch.manual_seed(0)
    model, hidden = Toy().to(dtype), torch.randn(1000, 16).to(dtype)
    with torch.no_grad():
        before = model(hidden)
        with ns.inject(model, noise) as injection:
            after = model(hidden)
    (row,) = injection.stats.rows
    assert before.numel() == row.elements == injection.stats.elements == MILLION
    assert row.dose == injection.stats.dose
    assert math.isclose(row.dose, noise.scale, rel_tol=TOLERANCE)
    if truth := TRUTHS.get(noise.name):
        assert math.isclose(truth(before, after), row.dose, rel_tol=TOLERANCE)
        assert math.isclose(truth(before, after), noise.scale, rel_tol=TOLERANCE)


def changes_nothing(name: str, dtype: torch.dtype) -> bool:
    """Values that are in the format already, or nearly: normal numbers of bfloat16 that float16 has too."""
    return (name, dtype) in {("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp16", torch.bfloat16)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NOISES)
def test_the_dose_of_an_injection(name, dtype):
    if changes_nothing(name, dtype):
        with pytest.raises(DoseVanished):
            check_dose(noise_of(name), dtype)
    else:
        check_dose(noise_of(name), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in NOISES if name in TRUTHS])
def test_the_dose_of_the_noise_itself(name, dtype):
    if changes_nothing(name, dtype):
        return
    noise = noise_of(name)
    before = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    after = before.clone()
    noise.disturb_(after, noise.scale, Key(0, "here"))
    assert math.isclose(TRUTHS[name](before, after), noise.scale, rel_tol=TOLERANCE)


def test_every_noise_with_a_closed_form_is_measured_by_it():
    assert set(TRUTHS) <= set(NOISES)


@pytest.mark.parametrize("field", ["sign", "exponent", "mantissa", 0, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bit_flips_of_every_field(field, dtype):
    check_dose(ns.BitFlip(1e-2, field=field), dtype)


@pytest.mark.parametrize("noise", [ns.StuckAt(1e-2, unit="channel"), ns.StuckAt(0.1, unit="channel")], ids=str)
def test_stuck_channels(noise):
    check_dose(noise, torch.float32)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("name", DENSE)
def test_small_and_large_scales(name, scale):
    check_dose(make_noise(name, scale), torch.float32)


@pytest.mark.parametrize("seed", range(5))
def test_any_seed(seed):
    torch.manual_seed(seed)
    model, hidden = Toy(), torch.randn(1000, 16)
    for name in NOISES:
        noise = noise_of(name)
        with torch.no_grad(), ns.inject(model, noise, seed=seed) as injection:
            model(hidden)
        assert math.isclose(injection.stats.dose, noise.scale, rel_tol=TOLERANCE), name


def test_gradients_have_their_dose_too():
    torch.manual_seed(0)
    model, hidden = Toy(), torch.randn(62500, 16, requires_grad=True)
    with ns.inject(model, ns.RelativeGaussian(0.05), phases="backward", layers=[0]) as injection:
        model(hidden).sum(-1).square().mean().backward()
    (row,) = injection.stats.rows
    assert row.phase == "backward"
    assert row.elements > MILLION
    assert math.isclose(row.dose, 0.05, rel_tol=TOLERANCE)


def test_multipliers_and_layer_scales_show_in_the_dose():
    torch.manual_seed(0)
    model, hidden = Toy(), torch.randn(1000, 16)
    options = {"operator_scales": {"linear": 0.5}, "layer_scales": {0: 0.2}}
    with torch.no_grad(), ns.inject(model, ns.RelativeGaussian(0.05), **options) as injection:
        model(hidden)
    (row,) = injection.stats.rows
    assert row.scale == 0.1
    assert math.isclose(row.dose, 0.1, rel_tol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_trained_models(request, name):
    model = request.getfixturevalue(name)
    ids = torch.randint(3, 500, (8, 128), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), ns.inject(model, ns.RelativeGaussian(0.05), operators="linear") as injection:
        model(input_ids=ids)
    assert injection.stats.elements > MILLION
    assert math.isclose(injection.stats.dose, 0.05, rel_tol=TOLERANCE)


# --- able to fail -----------------------------------------------------------------------------------------------


def half_the_noise(monkeypatch):
    real = Scales.at
    monkeypatch.setattr(Scales, "at", lambda self, layer, operator: real(self, layer, operator) / 2)


def half_the_noise_and_a_report_that_echoes_the_request(monkeypatch):
    half_the_noise(monkeypatch)
    monkeypatch.setattr(InjectionStats, "dose", property(lambda self: self.noise.scale))
    real = InjectionStats.rows

    def rows(self):
        found = real.fget(self)
        for row in found:
            object.__setattr__(row, "dose", self.noise.scale)
        return found

    monkeypatch.setattr(InjectionStats, "rows", property(rows))


def noise_applied_twice(monkeypatch):
    real = Injection._disturb_

    def mutant(self, site, value, key):
        real(self, site, value, key)
        real(self, site, value, key.part("again"))

    monkeypatch.setattr(Injection, "_disturb_", mutant)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("mutant", [half_the_noise, half_the_noise_and_a_report_that_echoes_the_request])
def test_the_mutants_are_caught(monkeypatch, mutant, name):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_dose(noise_of(name), torch.float32)


def test_a_mutant_that_disturbs_twice_is_caught(monkeypatch):
    noise_applied_twice(monkeypatch)
    with pytest.raises(AssertionError):
        check_dose(ns.RelativeGaussian(0.05), torch.float32)
