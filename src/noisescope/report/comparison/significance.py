"""Whether a figure of one run differs from that of another by more than chance, and by how much.

A KL per sequence is skewed: most samples have too few of the rare large ones, and then both the mean and its standard
error are too small. A test on logarithms with each run's own standard error finds differences between two samples of
the same thing far more often than it says (figures in tests/unit/report/test_significance.py). So a difference counts
only if it holds up in both ways:

    of the values       t = (b - a) / sqrt(s_a^2 + s_b^2)
    of the logarithms   t = log(b / a) / (r sqrt(1 / n_a + 1 / n_b)), r the larger of the two s sqrt(n) / value

each with as many degrees of freedom as the smaller run has, and p is the larger of the two. A loss of accuracy can be
zero or negative: there the first, with the larger scatter of the two. A KL that was or becomes zero has no factor:
there the first as it stands, and what is told is the difference. Both take the runs to be independent; if they
saw the same sequences, they vary together, their difference varies less, and the test finds fewer than it might.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, nan, sqrt
from typing import Literal

from ..figures import Interval

__all__ = ["LEVEL", "Shift", "holm", "shift"]

LEVEL = 0.05
"""the chance of any false alarm in a family of rows"""


@dataclass(frozen=True)
class Shift:
    """What a figure became: by which factor or by how much; with its 95% interval and p, NaN if untested."""

    effect: float
    low: float
    high: float
    p: float
    kind: Literal["factor", "difference"] = "difference"

    @property
    def rises(self) -> bool:
        """Whether the figure became larger."""
        return self.effect > (1.0 if self.kind == "factor" else 0.0)

    @property
    def tested(self) -> bool:
        """Whether there was enough to test with."""
        return isfinite(self.p)


UNTESTED = Shift(nan, nan, nan, nan)


def shift(before: Interval, after: Interval, *, positive: bool) -> Shift:
    """From one figure to the other: the factor of a quantity that is never negative, unless one is zero; else the
    difference."""
    freedom = min(before.n, after.n) - 1
    errors = [_stderr(figure, positive=positive) for figure in (before, after)]
    if freedom < 1 or not all(map(isfinite, (before.value, after.value, *errors))):
        return UNTESTED
    if positive and before.value > 0 and after.value > 0:
        return _factor(before, after, errors, freedom)
    return _difference(before, after, errors, freedom, common=not positive)


def holm(ps: Sequence[float]) -> list[float]:
    """The p values of a family, adjusted so that the chance of any false alarm at LEVEL is at most LEVEL.

    S. Holm, Scand. J. Statist. 6, 65 (1979); needs no independence. NaN stays NaN and does not count.
    """
    tested = sorted((at for at, p in enumerate(ps) if isfinite(p)), key=lambda at: ps[at])
    found, largest = [nan] * len(ps), 0.0
    for rank, at in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * ps[at]))
        found[at] = largest
    return found


def _factor(before: Interval, after: Interval, errors: Sequence[float], freedom: int) -> Shift:
    scatters = [error / figure.value * sqrt(figure.n) for error, figure in zip(errors, (before, after), strict=True)]
    relative = max(scatters) * sqrt(1 / before.n + 1 / after.n)
    moved = log(after.value / before.value)
    absolute = _difference(before, after, errors, freedom, common=False)
    reach = _student_factor(freedom) * relative
    p = max(_p(moved, relative, freedom), absolute.p)
    return Shift(exp(moved), _exp(moved - reach), _exp(moved + reach), p, "factor")


def _difference(before: Interval, after: Interval, errors: Sequence[float], freedom: int, *, common: bool) -> Shift:
    if common:
        scatter = max(error * sqrt(figure.n) for error, figure in zip(errors, (before, after), strict=True))
        error = scatter * sqrt(1 / before.n + 1 / after.n)
    else:
        error = sqrt(errors[0] ** 2 + errors[1] ** 2)
    moved = after.value - before.value
    reach = _student_factor(freedom) * error
    return Shift(moved, moved - reach, moved + reach, _p(moved, error, freedom))


def _p(moved: float, error: float, freedom: int) -> float:
    from scipy.special import stdtr

    if moved == 0:
        return 1.0
    return float(2 * stdtr(freedom, -abs(moved) / error)) if error > 0 else nan


def _stderr(figure: Interval, *, positive: bool) -> float:
    """As it is told; else from the interval, whose ends are t standard errors away, of a KL in logarithms."""
    if isfinite(figure.stderr) or figure.n < 2:
        return figure.stderr
    factor = _student_factor(figure.n - 1)
    if positive and 0 < figure.low <= figure.value:
        return figure.value * log(figure.value / figure.low) / factor
    return (figure.high - figure.low) / 2 / factor


def _student_factor(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def _exp(value: float) -> float:
    return exp(value) if value < 700 else inf
