"""Whether the format map is true: some of its cells computed for real, and what to use where it is not.

A cell is one layer in one format. Of each format two are run: the one with the largest predicted KL, where the second
order ends first, and one at random. As many again are those with the largest standard errors: a mean of squares whose
samples have long tails is known worse than the others, and a few of them make most of what is uncertain about a plan.
What was run stands where its standard error is the smaller one.

Where prediction and measurement differ by more than a factor of 1.5, intervals granted, the second order has failed for
that format: all its layers are measured, and these values stand.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, isfinite, nan

import numpy as np

from ..errors import NonFinite
from ..keys import Key
from ..measure.comparing import Comparison
from ..measure.intervals import Estimate
from ..measure.rank_correlation import rank_correlations
from ..points import Bench
from ..specs import Layer
from .emulating import quantised
from .format_map import FormatMap

__all__ = ["FAR", "PER_FORMAT", "Cell", "CheckedFormats", "check_formats", "measure", "run_in"]

FAR = 1.5
"""the factor by which a prediction may be off"""
PER_FORMAT = 3
"""cells that are run, on average: the largest, one at random, and one of those that are known worst"""


@dataclass(frozen=True)
class Cell:
    """One layer in one format, predicted and measured."""

    layer: Layer
    format: str
    predicted: Estimate
    measured: Estimate

    @property
    def ratio(self) -> float:
        """Predicted over measured; not a number where nothing was measured."""
        return self.predicted.value / self.measured.value if self.measured.value else nan

    @property
    def correction(self) -> float:
        """Measured over predicted: what the prediction is multiplied with where it cannot be trusted."""
        if not 0 < self.measured.value < inf:
            return self.measured.value
        return self.measured.value / self.predicted.value if self.predicted.value else inf

    @property
    def stands(self) -> bool:
        """Whether it is known better by its run than by the map."""
        return not self.predicted.stderr <= self.measured.stderr

    @property
    def off(self) -> bool:
        """Whether they differ by more than a factor, granted their intervals."""
        return (
            not self.measured.value < inf
            or self.predicted.low > FAR * self.measured.high
            or self.predicted.high * FAR < self.measured.low
        )


@dataclass(frozen=True, eq=False)
class CheckedFormats:
    """The map with what was measured of it."""

    map: FormatMap
    cells: Sequence[Cell]
    corrections: Mapping[tuple[Layer, str], float] = field(default_factory=dict)
    """layer and format -> measured over predicted, where what was measured stands"""
    failed: tuple[str, ...] = ()
    """formats for which the second order has failed: measured in all layers"""

    @property
    def ratio(self) -> float:
        """Predicted over measured, in the median of the cells that were run first and changed anything."""
        found = [cell.ratio for cell in self.cells if isfinite(cell.ratio)]
        return float(np.median(found)) if found else nan

    @property
    def agreement(self) -> Estimate:
        """The rank correlation of prediction and measurement."""
        pairs = np.array([(cell.predicted.value, cell.measured.value) for cell in self.cells]).reshape(-1, 2)
        return rank_correlations(*pairs.T, key=Key(0, "checked formats"))[0]

    def cost(self, paths: Iterable[str], layer: Layer, name: str) -> float:
        """The KL of weights of one layer in one format, as it stands; infinite where the numbers end."""
        found = self.map.together(dict.fromkeys(paths, name)).value * self.corrections.get((layer, name), 1.0)
        return found if isfinite(found) else inf


def check_formats(
    found: FormatMap,
    bench: Bench,
    formats: Sequence[str],
    *,
    seed: int = 0,
    keep: Iterable[str] = (),
    progress: Callable[[], None] | None = None,
) -> CheckedFormats:
    """Runs some layers of each format, and all layers of those that are foretold wrongly."""
    kept = frozenset(keep)
    layers = {layer: [path for path in paths if path not in kept] for layer, paths in found.layers.items()}
    layers = {layer: paths for layer, paths in layers.items() if paths}
    checking = _Checking(found, bench, layers, seed, progress or (lambda: None))
    first = [(layer, name) for name in formats for layer in checking.chosen(name)]
    places = [*first, *checking.uncertain(formats, besides=first)]
    known = {place: checking.cell(*place) for place in places}
    cells = tuple(known.values())
    failed = tuple(dict.fromkeys(cell.format for cell in cells if cell.off))
    for place in ((layer, name) for name in failed for layer in layers):
        if place not in known:
            known[place] = checking.cell(*place)
    stand = {place: cell.correction for place, cell in known.items() if cell.stands or cell.format in failed}
    return CheckedFormats(found, cells, stand, failed)


@dataclass(frozen=True, eq=False)
class _Checking:
    map: FormatMap
    bench: Bench
    layers: Mapping[Layer, Sequence[str]]
    seed: int
    progress: Callable[[], None]

    def chosen(self, name: str) -> list[Layer]:
        """The layer of the largest predicted KL, and another."""
        worst = max(self.layers, key=lambda layer: self._predicted(layer, name).value)
        others = [layer for layer in self.layers if layer != worst]
        draw = Key(self.seed, f"checked#{name}").digest
        return [worst, *([others[draw % len(others)]] if others else [])]

    def uncertain(self, formats: Sequence[str], *, besides: Collection[tuple[Layer, str]]) -> list[tuple[Layer, str]]:
        """Of the other cells those with the largest standard errors, one a format on average."""
        others = [(layer, name) for name in formats for layer in self.layers if (layer, name) not in besides]
        known = {place: self._predicted(*place).stderr for place in others}
        ordered = sorted((place for place in others if isfinite(known[place])), key=lambda place: -known[place])
        return ordered[: (PER_FORMAT - 2) * len(formats)]

    def cell(self, layer: Layer, name: str) -> Cell:
        choice = dict.fromkeys(self.layers[layer], name)
        start = layer if isinstance(layer, int) else 0
        measured = measure(self.bench, choice, start=start, seed=self.seed)
        self.progress()
        return Cell(layer, name, self._predicted(layer, name), measured)

    def _predicted(self, layer: Layer, name: str) -> Estimate:
        return self.map.together(dict.fromkeys(self.layers[layer], name))


def measure(bench: Bench, choice: Mapping[str, str], *, start: int = 0, seed: int = 0) -> Estimate:
    """The KL of a choice of formats, by running it; infinite where the output is not finite."""
    if not choice:
        return Estimate(0.0, 0.0, 0.0, 0.0, bench.data.rows)
    found = run_in(bench, choice, start=start, seed=seed)
    return found.kl if found is not None else Estimate(inf, inf, inf, inf, bench.data.rows)


def run_in(bench: Bench, choice: Mapping[str, str], *, start: int = 0, seed: int = 0) -> Comparison | None:
    """The model in a choice of formats beside the model as it is; None where the output is not finite."""
    include = [name for name in ("head",) if any(layer == name for layer in _outside(bench, choice))]
    with suppress(NonFinite):
        emulation = quantised(bench.model, choice, layout=bench.layout, include=include, seed=seed)
        return bench.compare(emulation, start=start)
    return None


def _outside(bench: Bench, choice: Mapping[str, str]) -> Iterable[Layer]:
    return (layer for module, layer in bench.layout.layer.items() if bench.layout.paths.get(module) in choice)
