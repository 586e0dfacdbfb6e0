"""What a row shares is taken out as well as it can be, and no more is ever claimed than is proven."""

import pytest
import torch

from noisescope.locating.host.shared import ratio_beyond_shared

SEEDS = range(20)


def rows(seed: int, width: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(seed)
    draw = torch.randn(3, 6, width, generator=dice, dtype=torch.float64)
    return draw[0], draw[1], draw[2].abs() + 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_what_columns_explain_up_to_the_bounds_is_never_accused(seed: int) -> None:
    a, b, bound = rows(seed)
    dice = torch.Generator().manual_seed(seed + 100)
    errors = (torch.rand(bound.shape, generator=dice, dtype=torch.float64) * 2 - 1).sign() * bound  # all at the limit
    assert float(ratio_beyond_shared(300 * a - 70 * b + errors, [a, b], bound).max()) <= 1 + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_an_element_beyond_what_the_others_allow_is_found(seed: int) -> None:
    a, b, bound = rows(seed)
    rest = 300 * a - 70 * b
    rest[2, 7] += 50 * bound[2, 7]
    ratio = ratio_beyond_shared(rest, [a, b], bound)
    assert float(ratio[2].max()) > 1
    assert float(ratio[[0, 1, 3, 4, 5]].max()) <= 1


def test_rows_that_fit_perfectly_beside_one_that_does_not() -> None:
    """A row without any error left has no weights to go on with."""
    a = torch.ones(2, 8, dtype=torch.float64)
    rest = 5 * a
    rest[1, ::2] = -5
    ratio = ratio_beyond_shared(rest, [a], torch.ones_like(a))
    assert float(ratio[0].max()) <= 1e-9
    assert float(ratio[1].max()) == pytest.approx(5, rel=1e-3)


def test_columns_of_zeros_and_a_single_element() -> None:
    zero = torch.zeros(1, 3, dtype=torch.float64)
    assert float(ratio_beyond_shared(zero + 2, [zero], zero + 1).max()) == pytest.approx(2)
    one = torch.ones(1, 1, dtype=torch.float64)
    assert float(ratio_beyond_shared(9 * one, [one], one).max()) <= 1
