"""The map, checked: some of its cells are injected for real, and where the map was wrong it is put right.

The most fragile cells and a random share of every operator's are measured. Where prediction and measurement differ by
more than their intervals, the measured value stands. If an operator's predictions are off in one direction, its other
cells are moved by the mean of the measured corrections, but only if that is seen to help: each checked cell is
predicted from the others, and the errors must get smaller.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, isinf, log, sqrt
from typing import Any

import numpy as np

from ..keys import Key
from ..measure.intervals import Estimate
from ..measure.rank_correlation import rank_correlations
from ..noise import Noise
from ..operators import OPERATORS
from ..points import Point, Result
from ..specs import Layer, Selection
from .sensing import Cell

__all__ = ["Checked", "CheckedMap", "cell_point", "choose_checks", "correct"]

_95 = 1.96
_BROKEN = Estimate(inf, inf, inf, 0.0, 0)
"""KL of an output that is not finite"""
_FEWEST_PAIRS = 5
"""ranks of fewer cells agree by chance"""
_PRODUCTS = tuple(name for name, row in OPERATORS.items() if row.product)


def cell_point(cell: Cell, noise: Noise, *, seed: int, trials: int) -> Point:
    """Noise at one operator of one layer."""
    layer, operator = cell
    return Point(Selection((layer,), (operator,)), noise, seed, trials)


def choose_checks(predicted: Mapping[Cell, Estimate], count: int, *, seed: int) -> list[Cell]:
    """About `count` cells: the third that is predicted to be worst, then operators in turn, layers at random."""
    ranked = sorted(predicted, key=lambda cell: -predicted[cell].value)
    chosen = ranked[: max(1, count // 3)]
    rest: dict[str, list[Cell]] = {}
    for cell in predicted:
        if cell not in chosen and isinstance(cell[0], int):
            rest.setdefault(cell[1], []).append(cell)
    shuffle = np.random.default_rng(Key(seed, "checks").digest)
    piles = [[cells[at] for at in shuffle.permutation(len(cells))] for cells in rest.values()]
    turn = 0
    while len(chosen) < count and any(piles):
        pile = piles[turn % len(piles)]
        if pile:
            chosen.append(pile.pop())
        turn += 1
    return chosen


@dataclass(frozen=True)
class Checked:
    """One cell of the checked map."""

    predicted: Estimate
    value: Estimate
    """what stands: the prediction, the measurement, or the prediction moved by its operator's correction"""
    how: str
    """predicted, measured or carried"""
    measured: Estimate | None = None
    disagrees: bool = False
    """True where prediction and measurement differ by more than their intervals"""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kl": self.value.as_json(),
            "how": self.how,
            "predicted": self.predicted.as_json(),
            "measured": self.measured.as_json() if self.measured else None,
            "disagrees": self.disagrees,
        }


@dataclass(frozen=True)
class CheckedMap:
    """KL at every cell for one noise, each with where it comes from, and how well the map did where it was checked."""

    cells: Mapping[Cell, Checked]
    corrections: Mapping[str, float]
    """operator -> the factor by which its unchecked cells were moved"""
    agreement: Mapping[str, Any]

    def layer(self, layer: Layer) -> Estimate | None:
        """The sum over a layer's operators: what noise on all of it would do if nothing interacted.

        `attention` is the second of the products, which the cell of the products has too: it counts once.
        """
        found = {operator: checked.value for (place, operator), checked in self.cells.items() if place == layer}
        if any(operator in found for operator in _PRODUCTS):
            found.pop("attention", None)
        return _sum(found.values()) if found else None

    def as_json(self) -> list[dict[str, Any]]:
        """One row a cell."""
        return [
            {"layer": layer, "operator": operator, **checked.as_json()}
            for (layer, operator), checked in self.cells.items()
        ]


def correct(
    predicted: Mapping[Cell, Estimate], results: Mapping[Cell, Result], *, prefer_measured: bool = False
) -> CheckedMap:
    """The map with its checks taken into account; with `prefer_measured` whatever was measured stands."""
    measured = {
        cell: result.comparison.kl
        for cell, result in results.items()
        if result.comparison is not None and result.comparison.kl.value > 0 and predicted[cell].value > 0
    }
    gaps = {cell: log(found.value / predicted[cell].value) for cell, found in measured.items()}
    factors = {
        operator: exp(float(np.mean(found)))
        for operator in dict.fromkeys(operator for _, operator in gaps)
        if carrying_helps(found := [gap for (_, other), gap in gaps.items() if other == operator])
    }
    cells = {
        cell: _stand(estimate, measured.get(cell), factors.get(cell[1]), prefer_measured)
        for cell, estimate in predicted.items()
    }
    broken = [cell for cell, result in results.items() if result.comparison is None and result.finding.final]
    cells |= {cell: Checked(predicted[cell], _BROKEN, "measured", _BROKEN, disagrees=True) for cell in broken}
    return CheckedMap(
        cells, factors, _agreement([(predicted[cell].value, found.value) for cell, found in measured.items()])
    )


def carrying_helps(gaps: Sequence[float]) -> bool:
    """Whether the mean of the other gaps (log measured / predicted) foretells each gap better than nothing does.

    Asks for three checked cells, and for half of the error to go: a correction must earn its place.
    """
    if len(gaps) < 3:
        return False
    found = np.asarray(gaps)
    left = found - (found.sum() - found) / (len(found) - 1)
    return bool(np.abs(left).mean() < 0.5 * np.abs(found).mean())


def _stand(predicted: Estimate, measured: Estimate | None, factor: float | None, prefer_measured: bool) -> Checked:
    if measured is not None:
        disagrees = _disagree(predicted, measured)
        if disagrees or factor is not None or prefer_measured or not isfinite(predicted.stderr):
            return Checked(predicted, measured, "measured", measured, disagrees)
        return Checked(predicted, predicted, "predicted", measured, disagrees)
    if factor is not None:
        return Checked(predicted, predicted.scaled(factor), "carried")
    return Checked(predicted, predicted, "predicted")


def _disagree(predicted: Estimate, measured: Estimate) -> bool:
    spread = sqrt((predicted.stderr / predicted.value) ** 2 + (measured.stderr / measured.value) ** 2)
    return abs(log(measured.value / predicted.value)) > _95 * spread


def _agreement(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """How prediction and measurement compare over the checked cells."""
    if len(pairs) < _FEWEST_PAIRS:
        return {"checked": len(pairs), "spearman": None, "ratio_median": None, "ratio_quartiles": None}
    predicted, measured = np.array(pairs).T
    ratios = predicted / measured
    rank, _ = rank_correlations(predicted, measured, key=Key(0, "agreement"))
    return {
        "checked": len(pairs),
        "spearman": rank.as_json(),
        "ratio_median": float(np.median(ratios)),
        "ratio_quartiles": [float(part) for part in np.quantile(ratios, [0.25, 0.75])],
    }


def _sum(found: Iterable[Estimate]) -> Estimate:
    """The sum of figures whose errors are taken as independent."""
    parts = list(found)
    value = sum(part.value for part in parts)
    if isinf(value):
        return _BROKEN
    stderr = sqrt(sum(part.stderr**2 for part in parts))
    factor = exp(min(_95 * stderr / value, 700.0)) if value > 0 else 1.0
    return Estimate(value, value / factor, value * factor, stderr, min(part.n for part in parts))
