"""What an engine is."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..points import Point, Result

__all__ = ["Engine"]


class Engine(Protocol):
    """Runs points. Results do not depend on the engine, nor on the other points."""

    def run(self, points: Sequence[Point]) -> Iterator[Result]:
        """One result a point, in their order, each as soon as it is known."""
        ...
