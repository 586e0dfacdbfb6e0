"""Estimates with their 95% intervals, from independent clusters such as sequences.

Tokens of one sequence are not independent, sequences are: every figure here is a ratio of sums over sequences, and
its standard error comes from how the sequences differ (linearised, Student's t with n - 1 degrees of freedom).
Analytic throughout, no bootstrap; rank correlations, which have no such formula, are the exception.
Comparisons are paired: clean and noisy are measured on the same sequences, so that only their difference varies.
"""

from dataclasses import dataclass
from math import exp, inf, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Estimate", "ratio"]

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure, its 95% interval, its standard error and the number of independent clusters behind it."""

    value: float
    low: float
    high: float
    stderr: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def scaled(self, factor: float) -> "Estimate":
        """The estimate of a fixed multiple."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high, self.stderr * abs(factor), self.n)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {"value": self.value, "low": self.low, "high": self.high, "stderr": self.stderr, "n": self.n}


def ratio(numerator: ArrayLike, denominator: ArrayLike, *, positive: bool = False) -> Estimate:
    """sum(numerator) / sum(denominator) over clusters, one element each.

    With `positive` the interval is that of the logarithm, as befits a quantity that is never negative, such as a KL
    divergence: its lower end stays above zero. Where a few clusters have much larger values than the others, most
    samples have too few of them: then the upper end is moved out, by Johnson's correction for skewness.
    """
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    n, total = len(top), float(bottom.sum())
    if total == 0:
        return Estimate(nan, nan, nan, nan, n)
    value = float(top.sum()) / total
    if n < 2:
        return Estimate(value, 0.0 if positive else -inf, inf, inf, n)
    with np.errstate(invalid="ignore"):  # infinities that meet are not a number, and need no warning
        spread = float(np.square(top - value * bottom).sum())
    stderr = sqrt(n / (n - 1) * spread) / abs(total)
    factor = _student(n - 1)
    if not positive or not value > 0:
        return Estimate(value, value - factor * stderr, value + factor * stderr, stderr, n)
    relative = stderr / value
    above = max(factor, _reach(top - value * bottom, relative, factor))
    return Estimate(value, value * exp(-factor * relative), value * exp(min(above * relative, 700.0)), stderr, n)


def _reach(deviations: NDArray[np.float64], relative: float, factor: float) -> float:
    """How many standard errors the logarithm of the truth may lie above that of the estimate.

    N. J. Johnson's modified t (J. Am. Stat. Assoc. 73, 536, 1978), with the logarithm's own curvature, half a relative
    standard error, taken from what the skewness asks for.
    """
    n, variance = len(deviations), float(np.square(deviations).mean())
    if n < 3 or not 0 < variance < inf:
        return factor
    skewness = float((deviations**3).mean()) / float(variance**1.5) * sqrt(n - 1) / (n - 2)  # of the sum
    return factor + skewness / 6 + (skewness / 3 - relative / 2) * factor**2


def _student(freedom: int) -> float:
    """The factor of a two-sided interval."""
    from scipy.stats import t

    return float(t.ppf(0.5 + LEVEL / 2, freedom))
