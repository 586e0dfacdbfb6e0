"""Points one after the other, in this process."""

from collections.abc import Iterator, Sequence
from math import nan

from ..errors import DoseVanished, NoisescopeError
from ..models.boundary import one_line
from ..points import Bench, Finding, Point, Result

__all__ = ["LocalEngine"]


class LocalEngine:
    """Runs points on a bench. A point that fails, out of memory say, is a result too: the others go on."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def run(self, points: Sequence[Point]) -> Iterator[Result]:
        """One result a point."""
        return map(self._attempt, points)

    def _attempt(self, point: Point) -> Result:
        _ = self.bench.recordings  # without a clean run nothing can be measured: this may raise
        try:
            return self.bench.run(point)
        except DoseVanished as error:  # a rare fault may hit nothing at one place and something at the next
            why, dose = str(error), 0.0
        except NoisescopeError:
            raise  # what was asked cannot be meant: no other point would tell
        except Exception as error:  # noqa: BLE001 - whatever a model's code raises says that this point failed, no more
            why, dose = f"{type(error).__name__}: {one_line(error)}", nan
        return Result(point, self.bench.clean, Finding(None, 0, 0, dose, nan, 0, 0.0, why, final=False))
