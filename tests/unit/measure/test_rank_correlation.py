"""Rank correlations against scipy, item by item and resample by resample."""

from math import inf, isnan, nan

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from noisescope.keys import Key
from noisescope.measure.rank_correlation import rank_correlations, spearman

KEY = Key(0, "test")


def columns(seed: int, n: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = 0.6 * x + rng.normal(size=n)
    return (np.round(x), np.round(y)) if ties else (x, y)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [4, 9, 32])
def test_values_are_those_of_scipy(n, ties):
    x, y = columns(n, n, ties=ties)
    rho, tau = rank_correlations(x, y, key=KEY, resamples=100)
    assert rho.value == pytest.approx(spearmanr(x, y).statistic)
    assert rho.value == spearman(x, y)
    assert tau.value == pytest.approx(kendalltau(x, y).statistic)
    assert rho.n == tau.n == n


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_resamples_are_those_of_a_loop_over_scipy():
    """The same draws, written out item by item."""
    x, y = columns(1, 9, ties=True)
    drawn = np.random.default_rng(KEY.digest).multinomial(9, np.full(9, 1 / 9), size=200)
    found = rank_correlations(x, y, key=KEY, resamples=200)
    for estimate, slow in zip(found, (spearmanr, kendalltau), strict=True):
        again = [slow(np.repeat(x, times), np.repeat(y, times)).statistic for times in drawn]
        low, high = np.nanquantile(again, [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx((low, high))
        assert estimate.stderr == pytest.approx(np.nanstd(again, ddof=1))


def test_intervals_cover_the_truth():
    """Normal pairs with correlation 0.7, for which both rank correlations have a closed form."""
    truth = 6 / np.pi * np.arcsin(0.35), 2 / np.pi * np.arcsin(0.7)
    inside = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=16)
        y = 0.7 * x + np.sqrt(1 - 0.49) * rng.normal(size=16)
        found = rank_correlations(x, y, key=Key(seed, "test"), resamples=400)
        inside += [each.low <= value <= each.high for each, value in zip(found, truth, strict=True)]
    assert 0.91 <= np.mean(inside) <= 0.995


def test_the_same_key_gives_the_same_interval():
    x, y = columns(2, 12, ties=False)
    assert rank_correlations(x, y, key=KEY) == rank_correlations(x, y, key=Key(0, "test"))
    assert rank_correlations(x, y, key=KEY) != rank_correlations(x, y, key=Key(1, "test"))


def test_items_without_a_number_are_left_out():
    x, y = columns(3, 8, ties=False)
    longer = [*x, nan, 1.0], [*y, 1.0, None]
    assert rank_correlations(*longer, key=KEY) == rank_correlations(x, y, key=KEY)


def test_infinite_values_have_a_rank():
    assert spearman([1, 2, inf, inf], [1, 2, 3, 3]) == 1.0
    assert spearman([-inf, 2, 3], [3, 2, 1]) == -1.0


@pytest.mark.parametrize(("x", "y"), [([], []), ([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, nan, 2], [1, 2, 3])])
def test_what_is_not_defined_is_nan(x, y):
    for estimate in rank_correlations(x, y, key=KEY):
        assert isnan(estimate.value)
        assert isnan(estimate.low)
    assert isnan(spearman(x, y))
