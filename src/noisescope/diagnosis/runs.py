"""What a diagnosis has run: points on an engine and other computations, each booked on its stage and remembered.

With a journal, what an earlier run of the same question has finished is taken from there, its cost included.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from ..engines import Engine, Journalled, LocalEngine
from ..errors import DoseVanished
from ..points import Bench, Point, Result
from ..store import Journal
from .progress import Progress

__all__ = ["Runs"]

_Kept = TypeVar("_Kept")
_Name = TypeVar("_Name", bound=Hashable)


class Runs:
    """Runs what it is asked to. `costs` are forward-pass equivalents over the evaluation set, by stage."""

    def __init__(self, bench: Bench, journal: Journal | None, progress: Progress) -> None:
        self.bench, self.journal, self.progress = bench, journal, progress
        local = LocalEngine(bench)
        self.engine: Engine = local if journal is None else Journalled(local, journal, lambda: bench.clean)
        self.costs: dict[str, float] = {}
        self._blocks: dict[str, int] = {}

    @property
    def cost(self) -> float:
        """Forward-pass equivalents of all stages so far."""
        return sum(self.costs.values())

    def stage(self, stage: str, points: Mapping[_Name, Point]) -> dict[_Name, Result]:
        """The results of a stage's points, in their order; DoseVanished if none of them changed anything."""
        tick = self.progress(stage, len(points))
        found = {}
        for name, result in zip(points, self.results(stage, list(points.values())), strict=True):
            found[name] = result
            tick()
        if found and all(result.finding.vanished for result in found.values()):
            raise DoseVanished(next(iter(found.values())).finding.failure)
        return found

    def results(self, stage: str, points: Sequence[Point]) -> Iterator[Result]:
        """What the engine gives for them, booked on a stage."""
        for result in self.engine.run(points):
            self._blocks[stage] = self._blocks.get(stage, 0) + result.finding.blocks
            self.costs[stage] = self._blocks[stage] / self.bench.blocks
            yield result

    def remembered(self, name: str, kind: type[_Kept], make: Callable[[], _Kept]) -> _Kept:
        """What the journal has under a name; else it is made, and kept there."""
        if self.journal is None:
            return make()
        found = self.journal.recall(kind, name)
        if found is None:
            found = make()
            self.journal.keep(name, found)
        return found
