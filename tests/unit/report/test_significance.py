"""How often the test is wrong, from samples of known distributions, and that it finds what is there.

Families of 30 rows with a false alarm at 5%, two samples of the same skewed distribution, 2000 repetitions (500 for the
plain test on logarithms with each sample's own standard error):

    sequences        8, 8         50, 50       50, 200      8, 50
    this test        0 - 0.1%     0 - 1.4%     1.1 - 2.3%   0 - 0.4%
    plain test       12 - 58%     9 - 70%      11 - 83%     19 - 71%
"""

from collections.abc import Callable
from math import inf, log, nan, sqrt

import numpy as np
import pytest

from noisescope.report.comparison import significance
from noisescope.report.comparison.significance import LEVEL, Shift, holm, shift
from noisescope.report.figures import Interval

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SKEWED: dict[str, Draw] = {
    "exponential": lambda rng, size: rng.exponential(1, size),
    "lognormal": lambda rng, size: rng.lognormal(0, 1, size),
    "very skewed": lambda rng, size: rng.lognormal(0, 1.5, size),
    "rare large": lambda rng, size: rng.exponential(1, size) * (1 + 50 * (rng.random(size) < 0.05)),
}
ROWS = 30


def figures(draw: Draw, rng: np.random.Generator, n: int, scale: float = 1.0) -> list[Interval]:
    """Means over n sequences for each row; rows of a run share half of what makes a sequence difficult."""
    values = draw(rng, (ROWS, n)) * np.sqrt(draw(rng, (1, n))) * scale
    means, errors = values.mean(1), values.std(1, ddof=1) / sqrt(n)
    return [Interval(float(m), nan, nan, float(e), n) for m, e in zip(means, errors, strict=True)]


def alarms(draw: Draw, sizes: tuple[int, int], repetitions: int, *, factor: float = 1.0) -> float:
    """The share of families in which at least one row is called different."""
    rng = np.random.default_rng(20)
    found = 0
    for _ in range(repetitions):
        before, after = figures(draw, rng, sizes[0]), figures(draw, rng, sizes[1], factor)
        pairs = zip(before, after, strict=True)
        found += min(holm([shift(one, other, positive=True).p for one, other in pairs])) <= LEVEL
    return found / repetitions


def check_size(draw: Draw, sizes: tuple[int, int], repetitions: int) -> None:
    """Raises if there are more false alarms than stated, by more than the repetitions leave open."""
    rate = alarms(draw, sizes, repetitions)
    assert rate <= LEVEL + 2.5 * sqrt(LEVEL * (1 - LEVEL) / repetitions), f"{rate:.1%} false alarms"


@pytest.mark.parametrize("sizes", [(8, 8), (50, 50), (50, 200)])
@pytest.mark.parametrize("name", SKEWED)
def test_false_alarms_are_no_more_than_stated(name: str, sizes: tuple[int, int]) -> None:
    check_size(SKEWED[name], sizes, 400)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 8), (50, 50), (50, 200), (8, 50)])
@pytest.mark.parametrize("name", SKEWED)
def test_false_alarms_over_many_repetitions(name: str, sizes: tuple[int, int]) -> None:
    check_size(SKEWED[name], sizes, 2000)


def test_the_check_sees_the_plain_test_on_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(before: Interval, after: Interval, errors: list[float], freedom: int) -> Shift:
        moved = log(after.value / before.value)
        error = sqrt((errors[0] / before.value) ** 2 + (errors[1] / after.value) ** 2)
        return Shift(moved, nan, nan, significance._p(moved, error, 2 * freedom))

    monkeypatch.setattr(significance, "_factor", plain)
    with pytest.raises(AssertionError, match="false alarms"):
        check_size(SKEWED["rare large"], (50, 50), 100)


def test_the_check_sees_a_family_that_is_not_adjusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "holm", lambda ps: list(ps))
    with pytest.raises(AssertionError, match="false alarms"):
        check_size(SKEWED["exponential"], (50, 50), 100)


def test_a_double_kl_is_found() -> None:
    assert alarms(SKEWED["exponential"], (50, 50), 40, factor=2.0) > 0.9


# --- the pieces -------------------------------------------------------------------------------------------------


def test_the_factor_and_its_interval() -> None:
    found = shift(Interval(0.1, 0, 0, 0.01, 50), Interval(0.2, 0, 0, 0.02, 50), positive=True)
    assert found.effect == pytest.approx(2)
    assert found.low < 2 < found.high
    assert found.low * found.high == pytest.approx(4)
    assert found.p < 0.001


def test_a_standard_error_is_read_off_the_interval_where_it_is_not_told() -> None:
    told = shift(Interval(0.1, 0.08, 0.12, 0.00995, 50), Interval(0.2, 0.18, 0.22, 0.00995, 50), positive=False)
    read = shift(Interval(0.1, 0.08, 0.12, nan, 50), Interval(0.2, 0.18, 0.22, nan, 50), positive=False)
    assert read.effect == told.effect == pytest.approx(0.1)
    assert read.p == pytest.approx(told.p, rel=0.05)


@pytest.mark.parametrize(
    "after",
    [
        Interval(inf, 0, inf, 0.1, 50),
        Interval(nan, nan, nan, nan, 50),
        Interval(0.2, 0, inf, inf, 1),
        Interval(0.2, 0.2, 0.2, nan, 0),
    ],
)
def test_what_cannot_be_tested_is_not(after: Interval) -> None:
    assert not shift(Interval(0.1, 0.05, 0.2, 0.02, 50), after, positive=True).tested


def test_no_scatter_is_no_proof() -> None:
    same = Interval(0.0, 0.0, 0.0, 0.0, 50)
    assert shift(same, same, positive=False).p == 1
    assert not shift(same, Interval(0.5, 0.5, 0.5, 0.0, 50), positive=False).tested


def test_from_zero_there_is_a_direction_and_no_factor() -> None:
    zero, some = Interval(0.0, 0.0, 0.0, 0.0, 50), Interval(0.2, 0.16, 0.24, 0.02, 50)
    up, down = shift(zero, some, positive=True), shift(some, zero, positive=True)
    assert (up.kind, up.effect, up.rises) == ("difference", 0.2, True)
    assert (down.kind, down.effect, down.rises) == ("difference", -0.2, False)
    assert up.p == down.p < 0.001
    smaller = shift(some, Interval(0.1, 0.08, 0.12, 0.01, 50), positive=True)
    assert (smaller.kind, smaller.rises) == ("factor", False)


def test_holm_by_hand() -> None:
    assert holm([0.01, nan, 0.04, 0.03]) == pytest.approx([0.03, nan, 0.06, 0.06], nan_ok=True)
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
