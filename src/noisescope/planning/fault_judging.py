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
        verdict = "within" if measured.high <= limit else "beyond" if measured.low > limit else "not shown to be within"
        return cls(measured.high <= limit, f"{what} {value}% [{low}, {high}], {verdict} {100 * limit:g}%")


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


def bounded(numerator: ArrayLike, denominator: ArrayLike, *, draws: int, positive: bool = False) -> Estimate:
    """A ratio over clusters; where nothing was counted in so many independent draws, at most 3 / draws."""
    found = ratio(numerator, denominator, positive=positive)
    return replace(found, low=0.0, high=3 / draws) if found.value == 0 and not np.any(numerator) else found
