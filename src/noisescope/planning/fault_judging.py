"""Whether a fault was borne: what was measured, with its interval, against the limit.

A limit holds if all of the interval is within it. Where nothing at all was lost in n independent draws, the upper end
is 3 / n, not 0.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ..measure.intervals import Estimate, ratio
from .fault_cases import FaultCase

__all__ = ["Check", "FaultResult", "bounded"]


@dataclass(frozen=True)
class Check:
    """One criterion."""

    passed: bool
    sentence: str

    @classmethod
    def at_most(cls, what: str, measured: Estimate, limit: float) -> "Check":
        """A share that must not exceed a limit."""
        value, low, high = (f"{100 * part:.3g}" for part in (measured.value, measured.low, measured.high))
        return cls(measured.high <= limit, f"{what} {value}% [{low}, {high}], at most {100 * limit:g}% allowed")


@dataclass(frozen=True)
class FaultResult:
    """What a case gave."""

    case: FaultCase
    checks: tuple[Check, ...]
    measured: dict[str, Estimate]
    """what was measured, by name"""

    @property
    def passed(self) -> bool:
        """True if every criterion holds."""
        return all(check.passed for check in self.checks)

    @property
    def sentence(self) -> str:
        """In one line: what failed, or all that was checked."""
        told = [check.sentence for check in self.checks if self.passed or not check.passed]
        return f"{self.case.test_id}, {self.case.test_type} at {self.case.component}: {'; '.join(told)}"


def bounded(numerator: ArrayLike, denominator: ArrayLike, *, draws: int) -> Estimate:
    """A ratio over clusters; where nothing was counted in so many independent draws, at most 3 / draws."""
    found = ratio(numerator, denominator)
    return replace(found, high=3 / draws) if not np.any(np.asarray(numerator)) else found
