"""Whether an operator got worse by more than is allowed, how sure that is, and how small a change would be seen.

What noise on an operator costs is a ratio of sums over sequences, D = sum(clean - noisy) / sum(clean). Its error is
linearised: sequence i contributes

    u_i = ((clean_i - noisy_i) - D clean_i) / sum(clean),        var D = n / (n - 1) sum u_i^2

Baseline (A) and checkpoint (B) saw the same sequences, so their contributions are subtracted sequence by sequence:
var(D_B - w D_A) = n / (n - 1) sum (u_Bi - w u_Ai)^2. What makes a sequence hard for both drops out.

Two checkpoints of one model are never the same: the question is not whether they differ but whether by more than a
point. So the null hypothesis of the test is D_B - D_A <= 0.01, one-sided, Student's t with n - 1 degrees of freedom.
"""

from dataclasses import dataclass
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from .evaluating import Counts

__all__ = ["LEVEL", "POWER", "Critical", "Difference", "Loss", "detectable", "samples_needed"]

LEVEL = 0.05
"""the chance that anything at all is failed wrongly"""
POWER = 0.8
"""the chance with which a change of the smallest detectable size is seen"""


@dataclass(frozen=True, eq=False)
class Loss:
    """What noise on one operator costs one model, and what each sequence contributes to its error."""

    value: float
    parts: NDArray[np.float64]
    right: float
    """predictions that are right without noise"""

    @classmethod
    def of(cls, clean: Counts, noisy: Counts) -> "Loss":
        """From right predictions by sequence; some of the clean ones must be right."""
        right = float(clean.sum())
        value = float((clean - noisy).sum()) / right
        return cls(value, ((clean - noisy) - value * clean) / right, right)


@dataclass(frozen=True)
class Difference:
    """One figure less another, with its standard error."""

    value: float
    stderr: float
    n: int

    @classmethod
    def between(cls, after: Loss, before: Loss | None = None, weight: float = 1.0) -> "Difference":
        """`after - weight x before`, paired by sequence; without `before`, what is after alone.

        Where no prediction changed at all, a change of one of them is what the next sequence may bring: the standard
        error is never taken to be less.
        """
        parts, n, least = after.parts, len(after.parts), 1 / after.right**2
        value = after.value
        if before is not None:
            parts, value = parts - weight * before.parts, value - weight * before.value
            least += (weight / before.right) ** 2
        if n < 2:
            return cls(value, inf, n)
        return cls(value, sqrt(max(n / (n - 1) * float(np.square(parts).sum()), least)), n)

    def p_above(self, margin: float) -> float:
        """The p-value of "it is at most the margin"."""
        if self.n < 2:
            return 1.0
        return 1.0 if self.stderr == inf else _t_below(-(self.value - margin) / self.stderr, self.n - 1)

    def interval(self) -> tuple[float, float]:
        """The 95% interval, of this figure alone."""
        if self.n < 2:
            return -inf, inf
        reach = _quantile(0.975, self.n - 1) * self.stderr
        return self.value - reach, self.value + reach


@dataclass(frozen=True)
class Critical:
    """How many standard errors it takes: to be significant in a family of tests, and to be so with the power stated."""

    significant: float
    powered: float

    @classmethod
    def of(cls, tests: int, n: int) -> "Critical":
        """In a family of so many tests, over so many sequences; as if no other test were significant."""
        if n < 2:
            return cls(inf, inf)
        return cls(_quantile(1 - LEVEL / max(1, tests), n - 1), _quantile(POWER, n - 1))

    @property
    def both(self) -> float:
        """From the margin to a change that is seen with the power stated."""
        return self.significant + self.powered


def detectable(change: Difference, margin: float, needed: float, right: float) -> float:
    """The smallest true change that is told from `margin` with `needed` standard errors to spare.

    A larger change has a larger error: each prediction that is lost besides adds its own variance, 1 / right^2, so that
    a change of d instead of the one seen has the variance stderr^2 + (d - change) / right.
    """
    if inf in (change.stderr, needed):
        return inf
    # d - margin = needed sqrt(stderr^2 + (d - change) / right), solved for d - margin
    linear = needed**2 / right
    constant = needed**2 * max(0.0, change.stderr**2 + (margin - change.value) / right)
    return margin + (linear + sqrt(linear**2 + 4 * constant)) / 2


def samples_needed(change: Difference, margin: float, needed: float, right: float, wanted: float) -> int:
    """About how many sequences it takes to see a change of the size wanted."""
    if wanted <= margin or change.stderr == inf:
        return 0
    variance = max(0.0, change.stderr**2 + (wanted - change.value) / right)
    return ceil(change.n * variance * (needed / (wanted - margin)) ** 2)


def _t_below(value: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, value))


def _quantile(level: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))
