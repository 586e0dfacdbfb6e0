"""What was disturbed, counted for the functional interface: by layer, by operator, in all.

The bookkeeping is the engine's. Here it is kept by noise model (doses of different models have different units),
made safe for several threads and for forks, and shown from zero wherever the reader has set the zero.
"""

import os
from collections import Counter
from collections.abc import Callable
from threading import RLock
from typing import Any, Literal, TypeAlias

from torch import Tensor

from ..injection import InjectionStats
from ..noise import Noise
from ..sites import Site
from ..specs import Layer

__all__ = ["Counts", "View"]

View: TypeAlias = Literal["layer", "operator"]
Tally: TypeAlias = Counter[tuple[Layer | None, str]]
"""(layer or operator, phase) -> values disturbed"""

_LOCK = RLock()
if hasattr(os, "register_at_fork"):  # a child forked while another thread books would wait for that thread for ever
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class _Booking(InjectionStats):
    """Statistics that several threads may write: those of a process, or autograd's device threads."""

    def __init__(self, noise: Noise, kept_by: "Counts") -> None:
        super().__init__(noise)
        self._kept_by = kept_by

    def book(
        self,
        site: Site,
        elements: int,
        scale: float,
        before: Tensor | None,
        after: Tensor | None,
        full: Tensor | None = None,
    ) -> None:
        with _LOCK:
            super().book(site, elements, scale, before, after, full)
        if self._kept_by.booked is not None:
            self._kept_by.booked()


class Counts:
    """Counts since noise was switched on."""

    def __init__(self) -> None:
        self.blocks = 0
        """number of layers of the largest model that ran"""
        self.booked: Callable[[], None] | None = None
        """called after every booking, by the thread that books"""
        self._stats: dict[str, InjectionStats] = {}
        self._zero: dict[View, Tally] = {"layer": Counter(), "operator": Counter()}

    def of(self, noise: Noise) -> InjectionStats:
        """The statistics that this noise model books into."""
        with _LOCK:
            return self._stats.setdefault(noise.name, _Booking(noise, self))

    def total(self, phase: str) -> int:
        """Values disturbed in one phase."""
        with _LOCK:
            return sum(stats.calls(phase=phase) for stats in self._stats.values())

    def by(self, view: View) -> Tally:
        """Values disturbed, by layer or operator and by phase, since that view was last reset."""
        found: Tally = Counter()
        with _LOCK:
            for stats in self._stats.values():
                parts = stats.by_layer if view == "layer" else stats.by_operator
                for name, phases in parts.items():
                    found.update({(name, phase): count for phase, count in phases.items()})
            found.subtract(self._zero[view])
        return found

    def reset(self, view: View | None = None) -> None:
        """Counts from zero again: in one view, or everywhere."""
        with _LOCK:
            if view is not None:
                self._zero[view].update(self.by(view))
                return
            for stats in self._stats.values():
                stats.reset()
            for zero in self._zero.values():
                zero.clear()

    def doses(self) -> dict[str, float]:
        """Noise model -> the scale really applied, in its unit, of those that disturbed anything."""
        with _LOCK:
            return {name: stats.dose for name, stats in self._stats.items() if stats.elements}

    def plain(self) -> dict[str, Any]:
        """All of it at one moment, as plain values: layers and operators that were touched, under their names."""
        with _LOCK:
            return {
                "forward": self.total("forward"),
                "backward": self.total("backward"),
                "layers": _touched(self.by("layer")),
                "operators": _touched(self.by("operator")),
                "doses": self.doses(),
            }


def _touched(counted: Tally) -> dict[str, dict[str, int]]:
    names = dict.fromkeys(name for (name, _), count in counted.items() if count)
    return {str(name): {phase: counted[name, phase] for phase in ("forward", "backward")} for name in names}
