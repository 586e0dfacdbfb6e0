"""One measured thing, an operator or a window of layers, as a report shows it."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..measure.intervals import Estimate
from ..measure.metrics import noise_tolerance_index, sensitivity_score
from ..measure.readings import read
from ..points import Result

__all__ = ["Row"]


@dataclass(frozen=True)
class Row:
    """What noise at a place did. Rows are ranked by degradation or, where that says nothing, by KL."""

    name: str
    result: Result

    @property
    def failed(self) -> bool:
        """True if nothing could be measured."""
        return self.result.comparison is None

    @property
    def broken(self) -> bool:
        """True if that was because the noise made the output non-finite; out of memory, say, tells nothing."""
        return self.failed and self.result.finding.final

    @property
    def conclusive(self) -> bool:
        """Whether accuracy says something: the clean model must be better than chance."""
        return self.result.comparison is not None and self.result.comparison.conclusive

    @property
    def kl(self) -> Estimate:
        """Nats per predicted token; infinite where the output was not finite, NaN where nothing is known."""
        found = self.result.comparison
        return found.kl if found is not None else _WORST if self.broken else _UNKNOWN

    @property
    def degradation(self) -> Estimate:
        """Relative loss of accuracy; all of it where the output was not finite, NaN where nothing is known."""
        found = self.result.comparison
        return found.degradation if found is not None else _ALL if self.broken else _UNKNOWN

    @property
    def sensitivity(self) -> Estimate:
        """Degradation over noise scale."""
        return self.degradation.scaled(sensitivity_score(1.0, self.result.point.noise_scale))

    @property
    def rank(self) -> tuple[float, float]:
        """What to sort by, the worst being the largest: an output that is not finite; what is not known comes last."""
        if self.failed:
            return (_INFINITY, _INFINITY) if self.broken else (-1.0, -1.0)
        return (self.degradation.value if self.conclusive else 0.0, self.kl.value)

    def as_json(self) -> dict[str, Any]:
        """The documented keys, then the rest; figures with their intervals."""
        found = self.result.comparison
        if found is None:
            return {
                "failed": self.result.finding.failure,
                "non_finite": self.broken,
                "total_injections": self.result.finding.injections,
            }
        loss = self.degradation
        tolerance = noise_tolerance_index(loss.value) if isfinite(loss.value) else None
        return {
            "degradation": loss.value,
            "sensitivity_score": self.sensitivity.value,
            "baseline_acc": found.clean.accuracy.value,
            "noisy_acc": found.noisy.accuracy.value,
            "degradation_interval": [loss.low, loss.high],
            "severity": read("relative degradation", loss.value) if self.conclusive else "inconclusive",
            "sensitivity_reading": read("sensitivity score", self.sensitivity.value)
            if self.conclusive
            else "inconclusive",
            "noise_tolerance_index": tolerance,
            "kl": found.kl.as_json(),
            "flip_rate": found.flip_rate.as_json(),
            "perplexity": found.noisy.perplexity.as_json(),
            "snr_db": self.result.finding.snr_db,
            "dose": self.result.finding.dose,
            "total_injections": self.result.finding.injections,
            "cost": self.result.finding.cost,
        }


_INFINITY, _NAN = float("inf"), float("nan")
_WORST = Estimate(_INFINITY, _INFINITY, _INFINITY, 0.0, 0)
_ALL = Estimate(1.0, 1.0, 1.0, 0.0, 0)
_UNKNOWN = Estimate(_NAN, _NAN, _NAN, _NAN, 0)
