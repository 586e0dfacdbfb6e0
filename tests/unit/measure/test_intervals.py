"""Ratios of sums over clusters: the textbook formula, the bootstrap, coverage, and where there is nothing to say."""

from math import inf, isinf, isnan, sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from noisescope.measure.intervals import Estimate, ratio


def clusters(n: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums and counts of n sequences of different length, in which tokens resemble each other."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(5, 40, n).astype(float)
    return sizes * draw.gamma(2.0, 0.5, n), sizes


def test_the_textbook_formula() -> None:
    """Cochran, Sampling Techniques, 6.4: the variance of a ratio estimate, without the finite population."""
    top, bottom = clusters(30)
    n, mean = len(top), bottom.mean()
    r = top.mean() / mean
    variance = np.sum((top - r * bottom) ** 2) / (n - 1) / (n * mean**2)
    found = ratio(top, bottom)
    half = stats.t.ppf(0.975, n - 1) * sqrt(variance)
    assert found.value == pytest.approx(r)
    assert found.stderr == pytest.approx(sqrt(variance))
    assert (found.low, found.high) == pytest.approx((r - half, r + half))
    assert found.n == n


def test_equal_clusters_are_the_mean_and_its_t_interval() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, 12)
    found = ratio(values, np.ones(12))
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert (found.value, found.stderr) == pytest.approx((values.mean(), stats.sem(values)))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_the_bootstrap_agrees() -> None:
    top, bottom = clusters(200)
    draw = np.random.default_rng(2)
    picks = draw.integers(0, 200, (4000, 200))
    again = top[picks].sum(1) / bottom[picks].sum(1)
    assert ratio(top, bottom).stderr == pytest.approx(again.std(), rel=0.05)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("n", [8, 50])
def test_intervals_hold_the_truth_as_often_as_they_say(n: int, positive: bool) -> None:
    """The truth is the ratio of the means, 1; skewed clusters cost a few percent where they are few."""
    found = [ratio(*clusters(n, seed), positive=positive) for seed in range(600)]
    held = np.mean([each.low <= 1.0 <= each.high for each in found])
    assert 0.90 < held < 0.985


@pytest.mark.parametrize("n", [50, 200])
def test_rare_large_clusters_do_not_make_intervals_too_short(n: int) -> None:
    """A log-normal of skewness 6; symmetric on the logarithm, as the mutant is, the intervals miss it too often."""
    sigma = 1.0
    truth = np.exp(sigma**2 / 2)
    found = [
        ratio(np.random.default_rng(seed).lognormal(0, sigma, n), np.ones(n), positive=True) for seed in range(1500)
    ]
    held = np.mean([each.low <= truth <= each.high for each in found])
    mutant = np.mean([each.low <= truth <= each.value**2 / each.low for each in found])
    assert mutant < 0.937
    assert mutant + 0.005 < held < 0.97
    assert held > 0.92


def test_without_skewness_the_logarithm_alone_decides() -> None:
    top, bottom = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.ones(5)
    found = ratio(top, bottom, positive=True)
    assert found.high == pytest.approx(found.value**2 / found.low)


def test_tokens_of_a_sequence_are_not_counted_as_independent() -> None:
    """One sequence repeated tells no more than once: the error does not shrink with its length."""
    top, bottom = clusters(20)
    assert ratio(10 * top, 10 * bottom).stderr == pytest.approx(ratio(top, bottom).stderr)
    assert ratio(np.tile(top, 4), np.tile(bottom, 4)).stderr < 0.6 * ratio(top, bottom).stderr


def test_a_positive_interval_stays_positive_and_is_symmetric_on_the_logarithm() -> None:
    top, bottom = np.array([0.0, 0.0, 0.0, 8.0]), np.ones(4)
    plain, positive = ratio(top, bottom), ratio(top, bottom, positive=True)
    assert plain.low < 0 < positive.low
    assert positive.value / positive.low == pytest.approx(positive.high / positive.value)
    assert (positive.value, positive.stderr, positive.n) == (plain.value, plain.stderr, plain.n)
    top, bottom = clusters(400)
    plain, positive = ratio(top, bottom), ratio(top, bottom, positive=True)
    assert (positive.low, positive.high) == pytest.approx((plain.low, plain.high), rel=0.01), (
        "alike where it is known well"
    )


def test_nothing_everywhere_is_nothing_for_sure() -> None:
    assert ratio(np.zeros(5), np.ones(5), positive=True) == Estimate(0.0, 0.0, 0.0, 0.0, 5)
    assert ratio(np.full(5, 2.0), np.ones(5)) == Estimate(2.0, 2.0, 2.0, 0.0, 5)


def test_one_cluster_has_a_value_and_no_end() -> None:
    assert ratio([3.0], [2.0]) == Estimate(1.5, -inf, inf, inf, 1)
    assert ratio([3.0], [2.0], positive=True) == Estimate(1.5, 0.0, inf, inf, 1)


@pytest.mark.parametrize(("top", "bottom"), [([], []), ([0.0, 0.0], [0.0, 0.0]), ([1.0], [0.0])])
def test_a_ratio_to_nothing_is_not_a_number(top: list[float], bottom: list[float]) -> None:
    found = ratio(top, bottom)
    assert all(map(isnan, (found.value, found.low, found.high, found.stderr)))
    assert found.n == len(top)


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_passed_on() -> None:
    assert isnan(ratio([1.0, np.nan], [1.0, 1.0]).value)
    assert isinf(ratio([1.0, np.inf], [1.0, 1.0]).value)
    assert isnan(ratio([1.0, np.nan], [1.0, 1.0], positive=True).value)


def test_a_very_uncertain_positive_figure_does_not_overflow() -> None:
    """Clusters of either sign, whose sum is almost nothing."""
    found = ratio([1e9, -1e9, 1e-9], [1.0, 1.0, 1.0], positive=True)
    assert found.low >= 0
    assert found.high > 1e9


def test_scaled() -> None:
    figure = Estimate(2.0, 1.0, 4.0, 0.5, 9)
    assert figure.scaled(3.0) == Estimate(6.0, 3.0, 12.0, 1.5, 9)
    assert figure.scaled(-1.0) == Estimate(-2.0, -4.0, -1.0, 0.5, 9)


def test_as_text_and_as_plain_values() -> None:
    figure = Estimate(0.12345, 0.1, 0.2, 0.01, 9)
    assert str(figure) == "0.123 [0.1, 0.2]"
    assert figure.as_json() == {"value": 0.12345, "low": 0.1, "high": 0.2, "stderr": 0.01, "n": 9}
