"""The dose, where it is hard to measure: texts of any length, zeros, values that are not finite, signs of zeros."""

import pytest
import torch

from noisescope.errors import InputError
from noisescope.injection.statistics import InjectionStats, sample
from noisescope.keys import Key
from noisescope.noise import AbsoluteGaussian, BitFlip, RelativeGaussian, StuckAt, SystematicBias, Uniform
from noisescope.sites import Site

SITE = Site(0, "softmax", "a")


def dose(noise, value: torch.Tensor, *, seed: int = 0) -> float:
    stats, after = InjectionStats(noise), value.clone()
    noise.disturb_(after, noise.scale, Key(seed, "a"))
    stats.book(SITE, value.numel(), noise.scale, *(sample(t, everything=noise.sparse) for t in (value, after)))
    return stats.dose


@pytest.mark.parametrize("length", [128, 250, 256, 1000, 1024])
def test_every_position_of_a_text_is_looked_at(length) -> None:
    weights = torch.ones(4, 2, length, length).tril()
    looked = sample(weights, everything=False).view(-1, length).sum(1)
    assert looked.unique().numel() > min(length, len(looked)) / 2
    doses = [dose(RelativeGaussian(0.05), weights, seed=seed) for seed in range(5)]
    assert all(found == pytest.approx(0.05, rel=0.04) for found in doses)


def test_padding_that_is_all_zero_hides_nothing() -> None:
    value = torch.randn(256, 8, 64)
    value[:, 0] = 0
    assert dose(RelativeGaussian(0.05), value) == pytest.approx(0.05, rel=0.04)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "noise", [RelativeGaussian(0.05), AbsoluteGaussian(0.05), Uniform(0.05), SystematicBias(0.05)], ids=repr
)
def test_one_bad_value_does_not_hide_the_dose(noise, bad) -> None:
    value = torch.randn(1000, 64)
    value[0, 0] = bad
    assert dose(noise, value) == pytest.approx(0.05, rel=0.03)


def test_a_flipped_sign_of_zero_is_a_flipped_bit() -> None:
    assert dose(BitFlip(0.1, field="sign"), torch.zeros(100, 1000)) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_all_flips_are_seen_in_any_dtype(dtype) -> None:
    value = torch.randn(300, 1000).to(dtype)
    value[0, :100] = float("nan")
    assert dose(BitFlip(0.1), value) == pytest.approx(0.1, rel=0.05)


def test_a_stuck_value_must_fit_the_dtype() -> None:
    with pytest.raises(InputError, match="cannot be held by float16"):
        StuckAt(0.1, value=1e6).disturb_(torch.ones(4, dtype=torch.float16), 0.1, Key(0, "a"))
    scalar = torch.ones(())
    StuckAt(1.0, unit="channel").disturb_(scalar, 1.0, Key(0, "a"))
    assert scalar == 0
