"""Every element, against ml_dtypes: all 16-bit patterns, all numbers of a grid, all halves between them."""

import pytest
import torch
from torch import Tensor

import format_oracles as oracles
from noisescope.noise.formats import grids
from noisescope.noise.formats.grids import Grid

NAMES = tuple(oracles.ELEMENTS)
SMALL = tuple(name for name in NAMES if name not in ("BF16", "FP16"))


def patterns(dtype: torch.dtype) -> Tensor:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    return every[every.isfinite()]


def around(values: Tensor) -> Tensor:
    """The values, all halves between neighbours, and the float32 numbers next to each of these."""
    halves = (values[1:] + values[:-1]) / 2
    found = torch.cat([values, halves])
    up, down = (torch.nextafter(found, torch.full_like(found, end)) for end in (torch.inf, -torch.inf))
    return torch.cat([found, up, down])


def check(name: str, values: Tensor) -> None:
    grid: Grid = getattr(grids, name)
    ours, theirs = grid.nearest(values.clone()), oracles.elements(name, values)
    if grid.saturates:  # where ml_dtypes has infinity or NaN
        theirs = torch.where(theirs.isfinite(), theirs, values.sign() * grid.highest)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_pattern_of_16_bits(name: str, dtype: torch.dtype) -> None:
    check(name, patterns(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_every_number_every_half_and_their_neighbours(name: str) -> None:
    numbers = oracles.codes(name)
    assert len(numbers) == {"BF16": 65279, "FP16": 63487, "E4M3": 253, "E5M2": 247}.get(
        name, 2 ** getattr(grids, name).bits - 1
    )  # all codes but NaN, infinities and the second zero
    check(name, around(numbers))
    assert torch.equal(getattr(grids, name).nearest(numbers.clone()), numbers)


@pytest.mark.parametrize("name", ["INT4", "INT8"])
def test_integers(name: str) -> None:
    grid: Grid = getattr(grids, name)
    values = around(torch.arange(grid.lowest - 2, grid.highest + 3))
    slowly = torch.tensor([min(max(round(value), grid.lowest), grid.highest) for value in values.tolist()])
    assert torch.equal(grid.nearest(values.clone()), slowly)


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_rounded_once(name: str) -> None:
    """A half and a little more than float32 can tell goes up; by way of float32 it would go to even."""
    numbers = oracles.codes(name).double()
    numbers = numbers[(numbers > 2**-60) & (numbers < 2**60)]
    halves = (numbers[1:] + numbers[:-1]) / 2
    above = torch.nextafter(halves, torch.full_like(halves, torch.inf))
    grid: Grid = getattr(grids, name)
    assert torch.equal(grid.nearest(above), numbers[1:])


def test_infinities_and_nan() -> None:
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30])
    assert grids.E4M3.nearest(odd.clone())[:2].tolist() == [448.0, -448.0]
    assert grids.FP16.nearest(odd.clone())[[0, 1, 3]].tolist() == [torch.inf, -torch.inf, torch.inf]
    for name in NAMES:
        assert getattr(grids, name).nearest(odd.clone())[2].isnan()


@pytest.mark.parametrize("name", [*NAMES, "INT4", "INT8"])
def test_stochastic_rounding_takes_the_neighbours_with_the_right_share(name: str) -> None:
    """Exactly: over an even comb of uniform numbers the mean is the value."""
    grid: Grid = getattr(grids, name)
    numbers = torch.arange(grid.lowest, grid.highest + 1) if grid.mantissa_bits is None else oracles.codes(name)
    numbers = numbers[(numbers.abs() < 2**20) & ((numbers.abs() > 2**-20) | (numbers == 0))]
    numbers = numbers[:: max(1, len(numbers) // 500)] if name in ("BF16", "FP16") else numbers
    comb = (torch.arange(64) + 0.5) / 64
    for share in (0.0, 0.25, 0.5, 0.75):
        low = numbers[:-1]
        high = next_on(grid, low)
        value = (low.double() + share * (high - low).double()).float()
        rounded = torch.stack([grid.stochastic(value.clone(), torch.full_like(value, float(u))) for u in comb])
        assert bool(((rounded == low) | (rounded == high)).all())
        assert torch.allclose(rounded.double().mean(0), value.double(), rtol=1e-6, atol=1e-12)


def next_on(grid: Grid, low: Tensor) -> Tensor:
    """The next number of the grid, by bisection with the nearest one."""
    step = torch.where(low == 0, torch.full_like(low, grid.smallest_normal), low.abs()) * 1.0
    below, above = low.double(), low.double() + step.double().clamp(min=1.0 if grid.mantissa_bits is None else 0.0)
    for _ in range(40):
        middle = (below + above) / 2
        moved = grid.nearest(middle.clone()) > low.double()
        below, above = torch.where(moved, below, middle), torch.where(moved, middle, above)
    return grid.nearest(above).float()


@pytest.mark.parametrize("name", [*NAMES, "INT4", "INT8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stochastic_rounding_leaves_numbers_of_the_grid_where_they_are(name: str, dtype: torch.dtype) -> None:
    """With the largest uniform number too, which a sum with it would round up to the next one."""
    grid: Grid = getattr(grids, name)
    numbers = torch.arange(grid.lowest, grid.highest + 1) if grid.mantissa_bits is None else oracles.codes(name)
    numbers = numbers.to(dtype)
    for uniform in (0.0, 0.5, 1 - torch.finfo(dtype).eps / 2):
        assert torch.equal(grid.stochastic(numbers.clone(), torch.full_like(numbers, uniform)), numbers)


@pytest.mark.parametrize("name", NAMES)
def test_infinities_at_random_are_what_they_are_at_the_nearest(name: str) -> None:
    grid, odd = getattr(grids, name), torch.tensor([torch.inf, -torch.inf])
    assert torch.equal(grid.stochastic(odd.clone(), torch.full_like(odd, 0.5)), grid.nearest(odd.clone()))
