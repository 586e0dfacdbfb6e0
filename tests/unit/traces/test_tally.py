"""Statistics of a site against float64, whatever the dtype, the shape and the number of calls."""

import pytest
import torch

from noisescope.traces.sketch import CHUNK, Sketcher
from noisescope.traces.tally import SiteTally

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def tally(*values: torch.Tensor) -> SiteTally:
    found = SiteTally(0)
    for value in values:
        found.fold(value, Sketcher(0, torch.device("cpu")))
    return found


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_are_those_of_all_calls_together(dtype: torch.dtype) -> None:
    values = [(3 * draw(2, 5, 40, seed=seed) - 1).to(dtype) for seed in range(3)]
    whole = torch.cat([value.reshape(-1, 40).double() for value in values])
    found = tally(*values).read()
    assert (found.count, found.sizes, found.width, found.non_finite) == (1200, (400, 400, 400), 40, 0)
    assert found.mean == pytest.approx(float(whole.mean()), rel=1e-5)
    assert found.std == pytest.approx(float(whole.std(unbiased=False)), rel=1e-6)
    assert (found.min, found.max) == (float(whole.min()), float(whole.max()))
    assert found.norm == pytest.approx(float(whole.norm()), rel=1e-6)
    peaks = whole.abs().amax(0)
    assert found.top_channels[0] == (int(peaks.argmax()), float(peaks.max()))
    assert [value for _, value in found.top_channels] == sorted(peaks.tolist(), reverse=True)[:8]


def test_a_small_spread_around_a_large_mean_survives() -> None:
    value = 1e4 + 0.01 * draw(100, 64)
    assert tally(value).read().std == pytest.approx(float(value.double().std(unbiased=False)), rel=1e-9)


@pytest.mark.parametrize("size", [1e-25, 1e25, 0.0])
def test_squares_outside_of_the_range_of_float32(size: float) -> None:
    value = size * draw(50, 16)
    assert tally(value).read().norm == pytest.approx(float(value.double().norm()), rel=1e-9)


def test_a_value_of_several_chunks() -> None:
    value = draw(3, CHUNK // 2)
    found = tally(value).read()
    assert found.norm == pytest.approx(float(value.double().norm()), rel=1e-5)
    assert found.mean == pytest.approx(float(value.double().mean()), abs=1e-7)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    value = draw(4, 8)
    value[0, 0], value[1, 2], value[3, 3] = torch.nan, torch.inf, -torch.inf
    found = tally(value).read()
    finite = value[value.isfinite()].double()
    assert found.non_finite == 3
    assert (found.min, found.max) == (float(finite.min()), float(finite.max()))
    assert found.mean == pytest.approx(float(finite.mean()), rel=1e-5)
    assert found.sketch.isfinite().all()
    assert found.sample.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bit_of_one_element_changes_the_digest(dtype: torch.dtype) -> None:
    value = draw(10, 33).to(dtype)
    other = value.clone()
    other[7, 3] = (
        torch.nextafter(other[7, 3].float(), torch.tensor(9.0)) if dtype == torch.float32 else other[7, 3] * 1.01
    )
    assert tally(value).read().bits == tally(value.clone()).read().bits
    assert tally(value).read().bits != tally(other).read().bits


def test_calls_in_another_order_have_another_digest() -> None:
    a, b = draw(4, 4, seed=1), draw(4, 4, seed=2)
    assert tally(a, b).read().bits != tally(b, a).read().bits


@pytest.mark.parametrize("value", [torch.zeros(0, 4), torch.tensor(2.0), torch.zeros(3, 0)])
def test_odd_shapes(value: torch.Tensor) -> None:
    found = tally(value).read()
    assert found.count == value.numel()
    assert found.norm == float(value.norm())


def test_widths_that_vary_from_call_to_call() -> None:
    found = tally(torch.ones(2, 3), torch.full((2, 5), 2.0)).read()
    assert found.width == 5
    assert dict(found.top_channels) == {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0}
