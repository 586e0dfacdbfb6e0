"""An engine that remembers: a point that the journal has is not run again.

A point whose noise made the output non-finite would do so again, and is kept; one that failed otherwise, out of memory
say, is tried again in the next run.
"""

from collections.abc import Callable, Iterator, Sequence

from ..measure.comparing import Outcome
from ..points import Finding, Point, Result
from ..store import Journal
from ..store.encoding import encode_line
from ..store.packing import pack
from .engine import Engine

__all__ = ["Journalled", "key_of"]


class Journalled:
    """Runs on another engine what the journal has not. `clean` gives the clean outcome, the same for all points."""

    def __init__(self, engine: Engine, journal: Journal, clean: Callable[[], Outcome]) -> None:
        self.engine, self.journal, self._clean = engine, journal, clean

    def run(self, points: Sequence[Point]) -> Iterator[Result]:
        """One result a point, from the journal or run and then kept."""
        known = [self._known(point) for point in points]
        fresh = self.engine.run([point for point, finding in zip(points, known, strict=True) if finding is None])
        for point, finding in zip(points, known, strict=True):
            yield Result(point, self._clean(), finding) if finding is not None else self._kept(next(fresh))

    def _known(self, point: Point) -> Finding | None:
        return self.journal.recall(Finding, key_of(point))

    def _kept(self, result: Result) -> Result:
        if result.finding.final:
            self.journal.keep(key_of(result.point), result.finding)
        return result


def key_of(point: Point) -> str:
    """What a point asks, written so that two that ask the same are written the same."""
    return encode_line({"error_type": point.noise.name, **pack(point)})
