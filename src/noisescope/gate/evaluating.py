"""What the gate measures: how many predictions each sequence has right, clean and with noise on one operator.

One clean run and one point an operator, over all layers, with the same noise for everyone who asks the same: two
checkpoints see the same tokens and the same draws, so that only they differ. Counts are kept by sequence, because
tokens of one sequence are not independent and sequences are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis import Diagnosis, Progress
from ..diagnosis.by_operator import operator_points
from ..engines import LocalEngine
from ..errors import DoseVanished, InputError
from ..keys import Key
from ..measure.batches import Batch, EvaluationSet
from ..measure.intervals import ratio
from ..measure.tasks import ExactMatch
from ..points import Bench, Point, Result

__all__ = ["MOST_PASSES", "Counts", "Evaluation", "evaluate"]

MOST_PASSES = 12
"""forward-pass equivalents that a check may cost"""
CHUNK = 8
"""batches that run together: the clean run of these is kept, all of it would take gigabytes"""

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Right predictions, one number a sequence."""

    asked: Counts
    """predictions to make"""
    clean: Counts
    """of these right, without noise"""
    noisy: Mapping[str, Counts]
    """operator -> right with noise on it"""
    chance: float
    """the accuracy of guessing"""
    cost: float
    """forward-pass equivalents"""
    failed: Mapping[str, str] = field(default_factory=dict)
    """operator -> why it could not be measured"""

    @property
    def accuracy(self) -> float:
        """Share of right predictions without noise."""
        return float(self.clean.sum() / self.asked.sum())

    @property
    def conclusive(self) -> bool:
        """Whether that is better than chance by more than two standard errors: else there is nothing to lose."""
        found = ratio(self.clean, self.asked)
        return found.value > self.chance + 2 * found.stderr


def evaluate(run: Diagnosis, *, progress: Progress) -> Evaluation:
    """Runs the model of a diagnosis that has been put together, on its data and with its noise."""
    points = operator_points(run.cells, run.noise, seed=run.spec.seed, trials=1)
    _refuse(run, len(points))
    chunks = list(_chunks(run.data))
    tick = progress("check", len(chunks) * len(points))
    parts = [_chunk(run, chunk, _reseeded(points, number), tick) for number, chunk in enumerate(chunks)]
    failed = {name: part.failed[name] for name in points for part in parts if name in part.failed}
    if len(failed) == len(points):
        raise DoseVanished(next(iter(failed.values())))
    return Evaluation(
        asked=np.concatenate([part.asked for part in parts]),
        clean=np.concatenate([part.clean for part in parts]),
        noisy={name: np.concatenate([part.noisy[name] for part in parts]) for name in points if name not in failed},
        chance=run.data.chance,
        cost=sum(part.cost for part in parts) / run.data.rows,
        failed=failed,
    )


def _refuse(run: Diagnosis, points: int) -> None:
    """Raises for what would cost more than a check may."""
    if isinstance(run.data.task, ExactMatch):
        raise InputError(
            f"{run.data.name}: answers that the model writes cost more than the {MOST_PASSES} forward passes of a "
            "check; expected text, or questions with choices"
        )
    if 1 + points > MOST_PASSES:
        raise InputError(
            f"operators: {points} places cost more than the {MOST_PASSES} forward passes of a check; name some of them"
        )


def _chunks(data: EvaluationSet) -> Iterator[EvaluationSet]:
    """The data some batches at a time, samples counted anew; at once where a sample has several rows."""
    if data.task is not None:
        yield data
        return
    for start in range(0, len(data.batches), CHUNK):
        batches, first = [], 0
        for batch in data.batches[start : start + CHUNK]:
            batches.append(_renumbered(batch, first))
            first += batch.rows
        yield EvaluationSet(data.name, tuple(batches))


def _renumbered(batch: Batch, first: int) -> Batch:
    return replace(batch, samples=tuple(range(first, first + batch.rows)))


def _reseeded(points: Mapping[str, Point], number: int) -> Mapping[str, Point]:
    """Points with noise of their own for each chunk; the first has that of a diagnosis with the same seed."""
    if number == 0:
        return points
    return {name: replace(point, seed=Key(point.seed, "check", trial=number).digest) for name, point in points.items()}


def _chunk(run: Diagnosis, data: EvaluationSet, points: Mapping[str, Point], tick: Any) -> Evaluation:
    """The counts of a chunk; its cost is in rows."""
    # whether trials can resume is tried out on one batch, which costs more than it saves where there is no other
    bench = Bench(run.model, data, layout=run.layout, resume=len(data.batches) > 1)
    engine = LocalEngine(bench)
    noisy, failed = dict[str, Counts](), dict[str, str]()
    for name, result in zip(points, engine.run(list(points.values())), strict=True):
        if (found := _right(result)) is None:
            failed[name] = result.finding.failure
        else:
            noisy[name] = found
        tick()
    clean = bench.clean
    return Evaluation(_whole(clean.asked), _whole(clean.correct), noisy, clean.chance, bench.cost * data.rows, failed)


def _right(result: Result) -> Counts | None:
    """Right predictions by sequence: none where the noise made the output non-finite; None where nothing is known."""
    if result.finding.noisy is not None:
        return _whole(result.finding.noisy.correct)
    return np.zeros(len(result.clean.correct), np.int64) if result.finding.final else None


def _whole(sums: NDArray[np.float64]) -> Counts:
    return np.rint(sums).astype(np.int64)
