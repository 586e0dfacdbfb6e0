"""Estimates with their 95% intervals, from independent clusters such as sequences.

Tokens of one sequence are not independent, sequences are: every figure here is a ratio of sums over sequences, and
its standard error comes from how the sequences differ (linearised, Student's t with n - 1 degrees of freedom).
Comparisons are paired: clean and noisy are measured on the same sequences, so that only their difference varies.
"""

from dataclasses import dataclass
from math import exp, inf, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

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

    def narrower_than(self, tolerance: float) -> bool:
        """True if the interval's half-width is within that share of the value."""
        return (self.high - self.low) / 2 <= tolerance * abs(self.value)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {"value": self.value, "low": self.low, "high": self.high, "stderr": self.stderr, "n": self.n}


def ratio(numerator: ArrayLike, denominator: ArrayLike, *, positive: bool = False) -> Estimate:
    """sum(numerator) / sum(denominator) over clusters, one element each.

    With `positive` the interval is symmetric on the logarithm, as befits a quantity that is never negative and whose
    clusters are skewed, such as a KL divergence: its lower end stays above zero.
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
    half = _student(n - 1) * stderr
    if positive and value > 0:
        factor = exp(min(half / value, 700.0))
        return Estimate(value, value / factor, value * factor, stderr, n)
    return Estimate(value, value - half, value + half, stderr, n)


def _student(freedom: int) -> float:
    """The factor of a two-sided interval."""
    from scipy.stats import t

    return float(t.ppf(0.5 + LEVEL / 2, freedom))
