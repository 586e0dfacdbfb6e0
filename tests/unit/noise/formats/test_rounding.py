"""Formats as noise: what an injection computes, its gradients, its dose, its scales."""

import pytest
import torch
from torch import Tensor, nn

import noisescope as ns
from noisescope.errors import DoseVanished, InputError
from noisescope.noise import NOISES
from noisescope.noise.formats import FORMATS, format_noise, parse_format


class Toy(nn.Module):
    """Two blocks of one linear each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(40, 40)) for _ in range(2)])

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


@pytest.mark.parametrize("name", FORMATS)
def test_an_injected_format_rounds_the_values_of_the_operator(name: str) -> None:
    model, hidden = Toy(), torch.randn(3, 5, 40)
    with torch.no_grad(), ns.inject(model, format_noise(name), layers=[0]) as run:
        noisy = model(hidden)
    with torch.no_grad():
        slowly = model.layers[1](parse_format(name).round(model.layers[0](hidden)))
    assert torch.equal(noisy, slowly)
    assert run.stats.dose == pytest.approx(1.0, abs=1e-6)


def test_gradients_go_straight_through() -> None:
    model, hidden = Toy(), torch.randn(3, 5, 40, requires_grad=True)
    with ns.inject(model, format_noise("mxfp4")):
        (rounded,) = torch.autograd.grad(model(hidden).sum(), hidden)
    (plain,) = torch.autograd.grad(model(hidden).sum(), hidden)
    assert torch.equal(rounded, plain)


@pytest.mark.parametrize("scale", [0.1, 0.5, 0.99])
def test_a_scale_below_one_is_that_share_of_the_error(scale: float) -> None:
    model, hidden = Toy(), torch.randn(3, 5, 40)
    with torch.no_grad(), ns.inject(model, format_noise("int4:group=32", scale), layers=[1]) as run:
        noisy = model(hidden)
    with torch.no_grad():
        clean = model(hidden)
    error = parse_format("int4:group=32").round(clean) - clean
    assert torch.allclose(noisy, clean + scale * error, atol=1e-6)
    assert run.stats.dose == pytest.approx(scale, rel=1e-4)


def test_a_format_that_the_values_have_already_is_no_silent_nothing() -> None:
    model, hidden = Toy().bfloat16(), torch.randn(3, 5, 40).bfloat16()
    with pytest.raises(DoseVanished, match="bf16 at scale 1 changed none"), ns.inject(model, format_noise("bf16")):
        model(hidden)


def test_stochastic_rounding_differs_by_trial_and_not_by_run() -> None:
    model, hidden = Toy(), torch.randn(3, 5, 40)
    found = []
    for trial in (0, 0, 1):
        with torch.no_grad(), ns.inject(model, format_noise("mxfp4:stochastic"), trial=trial):
            found.append(model(hidden))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_names_and_scales() -> None:
    assert all(name in NOISES for name in FORMATS)
    assert ns.make_noise("int4", 1.0, options="group=32") == format_noise("int4:group=32")
    with pytest.raises(InputError, match=r"mxfp4: got scale 1\.5, expected at most 1, the format itself"):
        format_noise("mxfp4", 1.5)
    with pytest.raises(InputError, match="did you mean"):
        format_noise("mxfp44")
