"""What noise was really applied while a model was trained: one line for each run of steps at one scale.

Sums stay on the device until somebody reads them, as everywhere in injection; a line that waits is small, and many of
them are read at once.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ..injection import InjectionStats
from ..noise import Noise
from ..report.layers import in_model_order
from ..specs import Layer

__all__ = ["Applied", "Ledger"]

LONGEST = 10_000
"""lines that are kept; older ones are forgotten"""
WAITING = 64
"""lines that are not read yet, at the most"""


@dataclass(frozen=True)
class Applied:
    """Noise of one kind in consecutive steps of one scale."""

    kind: str
    """`noise` in operator outputs, `norm_noise` in norm weights"""
    first: int
    last: int
    """steps, both included"""
    scale: float
    """the base scale that was asked for"""
    dose: float
    """the scale that was really applied, over all layers"""
    layers: Mapping[Layer, float]
    """layer -> the scale that was really applied there; what is in no layer is left out"""
    elements: int
    changed: int
    """of the elements looked at, how many changed a bit"""


@dataclass
class _Line:
    first: int
    last: int
    scale: float
    stats: InjectionStats


class Ledger:
    """The lines of one kind of noise, in order."""

    def __init__(self, kind: str, noise: Noise) -> None:
        self.kind, self.noise = kind, noise
        self._waiting: list[_Line] = []
        self._read = deque[Applied](maxlen=LONGEST)

    def open(self, step: int, scale: float) -> InjectionStats:
        """The statistics to book a step's noise into."""
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.scale != scale or not last.first <= step <= last.last + 1:
            if len(self._waiting) >= WAITING:
                self.read()
            last = _Line(step, step, scale, InjectionStats(self.noise))
            self._waiting.append(last)
        last.last = max(last.last, step)
        return last.stats

    def read(self) -> list[Applied]:
        """The lines that were not read yet; each is closed by it."""
        found = [self._applied(line) for line in self._waiting]
        self._waiting = []
        self._read.extend(found)
        return found

    @property
    def lines(self) -> list[Applied]:
        """All lines, also those still open."""
        return [*self._read, *map(self._applied, self._waiting)]

    def _applied(self, line: _Line) -> Applied:
        stats, total = line.stats, line.stats.total
        layers = in_model_order(layer for layer in stats.by_layer if layer is not None)
        doses = {layer: self.noise.dose(stats.measured(layer=layer)) for layer in layers}
        return Applied(
            self.kind,
            line.first,
            line.last,
            line.scale,
            self.noise.dose(total),
            doses,
            stats.elements,
            total.changed,
        )
