"""Critical thresholds: the smallest noise scale that costs more than a tenth of the accuracy.

Predicted for every layer and operator from the map: KL grows with the square of the scale, and how much accuracy a KL
costs this model on this data is read off the points that were injected (`Link`). Verified by a search on a grid of
0.001 up to 0.20, with the same draws at every scale, for the places that are predicted to be worst.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, log, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..measure.intervals import Estimate
from ..measure.readings import read
from ..points import Point
from .rows import Row

__all__ = ["GRID", "LARGEST", "Link", "Threshold", "search"]

GRID = 0.001
LARGEST = 0.20
_BROKEN = 0.6
"""a model that has lost so much says little about how losing begins"""
_SMALLEST_ERROR = 1e-4
_SLOPES = np.linspace(0.3, 1.2, 46)
"""degradation grows as the root of the KL where a few predictions are close calls, as the KL itself where many are"""


@dataclass(frozen=True)
class Link:
    """Degradation = exp(intercept) KL^slope for this model on this data, fitted to measured points."""

    intercept: float
    slope: float
    spread: float
    """scatter of the log of a degradation around this line"""
    points: int

    @classmethod
    def fit(cls, rows: Iterable[Row]) -> "Link | None":
        """By least squares on the degradations themselves, each weighed by its standard error, losses of nothing too.

        (On their logarithms the small ones, which are mostly noise and of which only the positive have a logarithm,
        would tilt the line.) None where fewer than three points were measured, or none lost more than its error.
        """
        used = [row for row in rows if row.conclusive and row.degradation.value < _BROKEN and row.kl.value > 0]
        if len(used) < 3 or not any(row.degradation.low > 0 for row in used):
            return None
        kl, loss = (np.array([getattr(row, name).value for row in used]) for name in ("kl", "degradation"))
        error = np.array([max(row.degradation.stderr, _SMALLEST_ERROR) for row in used])
        slope = min(_SLOPES, key=lambda slope: _misfit(kl**slope, loss, error)[0])
        _, factor = _misfit(kl**slope, loss, error)
        if factor <= 0:
            return None
        fitted = factor * kl**slope
        weights = np.square(fitted / error)  # a line through many points is known where their losses are
        scatter = float(np.sqrt(np.sum(weights * np.square(loss / fitted - 1)) / weights.sum()))
        return cls(log(factor), float(slope), scatter, len(used))

    def kl_at(self, degradation: float) -> float:
        """The KL that goes with so much loss."""
        return exp((log(degradation) - self.intercept) / self.slope)

    def threshold(self, kl: Estimate, scale: float, target: float) -> Estimate:
        """The scale at which a place that gives `kl` at `scale` loses `target`, KL growing as the square."""
        if not kl.value > 0:
            return Estimate(inf, LARGEST, inf, nan, kl.n)
        value = scale * sqrt(self.kl_at(target) / kl.value)
        relative = 0.5 * sqrt((kl.stderr / kl.value) ** 2 + (self.spread / self.slope) ** 2)
        factor = exp(min(1.96 * relative, 700.0))
        return Estimate(value, value / factor, value * factor, value * relative, kl.n)


@dataclass(frozen=True)
class Threshold:
    """The critical threshold of one place, predicted, and measured where it was searched for."""

    name: str
    predicted: Estimate | None
    """None if nothing that was injected lost accuracy, so that nothing is known of how it goes"""
    measured: tuple[float, float] | None = None
    """the last scale that did not lose too much, and the next that did, neighbours on the grid if the search came to
    its end; (0.2, inf) if none does"""
    evaluations: int = 0

    @property
    def value(self) -> float:
        """What stands."""
        if self.measured is not None and self.complete:
            return self.measured[1]
        foretold = self.predicted.value if self.predicted is not None else inf
        return foretold if self.measured is None else min(max(foretold, self.measured[0] + GRID), self.measured[1])

    @property
    def complete(self) -> bool:
        """Whether the search came to its end: to neighbours on the grid, or to its largest scale."""
        if self.measured is None:
            return False
        low, high = self.measured
        return high - low < 1.5 * GRID or low > LARGEST - GRID / 2

    @property
    def how(self) -> str:
        """measured, bracketed (a search that ended early), predicted or unknown."""
        if self.complete:
            return "measured"
        if self.measured is not None and self.measured[1] <= LARGEST:
            return "bracketed"
        return "predicted" if self.predicted is not None else "unknown"

    def as_json(self) -> dict[str, Any]:
        """Plain values; a threshold beyond the search, or one that nothing is known of, is null."""
        foretold, how = self.predicted, self.how
        return {
            "critical_threshold": self.value if self.value <= LARGEST else None,
            "risk": read("critical threshold", min(self.value, 1.0)) if how != "unknown" else "unknown",
            "how": how,
            "predicted": foretold.value if foretold is not None and foretold.value <= LARGEST else None,
            "predicted_interval": [
                min(foretold.low, LARGEST),
                foretold.high if foretold.high <= LARGEST else None,
            ]
            if foretold
            else None,
            "measured_between": list(self.measured) if self.measured is not None else None,
            "evaluations": self.evaluations,
        }


def search(
    point: Point,
    degradation: Callable[[Point], float],
    *,
    target: float,
    start: float = 0.05,
    known: Mapping[float, float] | None = None,
    go_on: Callable[[], bool] = lambda: True,
) -> tuple[tuple[float, float], int]:
    """The two neighbours on the grid between which the degradation passes `target`, and how many points it took.

    `known` are degradations measured already, by scale. Degradation is taken to grow with the scale. When `go_on` says
    no, the search ends with ends that are further apart.
    """
    steps = round(LARGEST / GRID)
    found = {round(scale / GRID): loss for scale, loss in (known or {}).items() if _on_grid(scale)} | {0: 0.0}
    guess = max(1, round(min(start, LARGEST) / GRID))
    evaluations = 0
    while True:
        low = max(at for at, loss in found.items() if loss <= target)
        high = min((at for at, loss in found.items() if loss > target and at > low), default=steps + 1)
        if high - low <= 1 or not go_on():
            break
        at = _next(low, high, found, target, guess, steps)
        found[at] = degradation(replace(point, scale=_scale(at)))
        evaluations += 1
    upper = inf if high > steps else _scale(high)
    return (_scale(low), upper), evaluations


def _next(low: int, high: int, found: Mapping[int, float], target: float, guess: int, steps: int) -> int:
    """The next step of the grid to try: the prediction first, then where a curve between the ends passes."""
    if low < guess < high and guess not in found:
        return guess
    if high > steps:  # nothing lost enough yet: a little beyond where a straight line would
        further = min(4.0, 1.2 * target / found[low]) if found[low] > 0 else 4.0
        return min(steps, max(low + 1, round(low * further)))
    at = round(_crossing(low, found[low], high, found[high], target))
    # a curve that always falls short on one side would creep: from there on the middle
    return max(low + 1, min(high - 1, at if len(found) < 8 else (low + high) // 2))


def _crossing(low: int, below: float, high: int, above: float, target: float) -> float:
    """Where a power of the scale through both ends passes the target; a line where the lower one lost nothing."""
    if low > 0 and below > 0:
        return float(low * (high / low) ** (log(target / below) / log(above / below)))
    return low + (high - low) * (target - below) / (above - below)


def _scale(at: int) -> float:
    """A step of the grid, as people write it."""
    return round(at * GRID, 3)


def _on_grid(scale: float) -> bool:
    return abs(scale / GRID - round(scale / GRID)) < 1e-6 and 0 < scale <= LARGEST


def _misfit(shape: NDArray[np.float64], loss: NDArray[np.float64], error: NDArray[np.float64]) -> tuple[float, float]:
    """Weighted squared error of the best factor times `shape`, and that factor."""
    factor = float(np.sum(shape * loss / error**2) / np.sum((shape / error) ** 2))
    return float(np.sum(np.square((loss - factor * shape) / error))), factor
