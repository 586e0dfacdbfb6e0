"""What became of the checkpoints of a model, check by check: appended to, never rewritten.

The file is a journal (`store.journal`): a checksum and one record a line, each on the disk before the next step begins.
A process that is killed leaves what it has appended; a torn line is left out when the file is read. One history is of
one measurement (tokens, noise, structure): figures of another cannot be drawn in the same line.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import InputError, StoreError
from ..store import Journal
from .result import RobustnessCheck

__all__ = ["Entry", "append", "entry_of", "refuse_other"]


@dataclass(frozen=True)
class Entry:
    """What is kept of a check."""

    label: str
    """what the checkpoint is called"""
    outcome: str
    accuracy: float
    """clean"""
    degradation: Mapping[str, tuple[float, float, float]]
    """operator -> what noise on it costs, and the ends of its 95% interval"""
    weights: str
    baseline: str
    cost: float

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `report.check.trend` draws them."""
        return {**asdict(self), "degradation": {name: [*found] for name, found in self.degradation.items()}}


def entry_of(check: RobustnessCheck, label: str) -> Entry:
    """What a history keeps of a check."""
    found = check.sections
    return Entry(
        label=label,
        outcome=check.outcome,
        accuracy=found["accuracy"]["current"],
        degradation={row.operator: (row.current, *row.current_interval) for row in check.rows if isfinite(row.current)},
        weights=found["weights"],
        baseline=found["baseline"].get("digest", found["baseline"]["kind"]),
        cost=found["cost"],
    )


def append(path: str | Path, question: Mapping[str, Any], entry: Entry) -> list[Entry]:
    """Adds an entry to the history in a file, which is made if it is not there; all entries, the new one last.

    Raises as `refuse_other` does, and StoreError if another process is at the file.
    """
    refuse_other(path, question)
    with Journal(path) as journal:
        journal.begin(question)
        journal.keep(_unused(journal), entry)
        found = [journal.recall(Entry, key) for key in journal.keys]
    return [one for one in found if one is not None]


def refuse_other(path: str | Path, question: Mapping[str, Any]) -> None:
    """Raises for a file that this measurement cannot be added to; worth asking before anything is measured.

    InputError naming what differs if it is the history of another measurement, StoreError if it is none.
    """
    try:
        Journal(path).refuse_other(question)
    except InputError as error:
        differs = str(error).partition(";")[0]
        raise InputError(
            f"{differs}: its figures cannot be drawn with these; use another history file (--history)"
        ) from None
    except StoreError as error:
        raise StoreError(f"{str(error).partition(';')[0]}; use another history file (--history)") from None


def _unused(journal: Journal) -> str:
    """A key that no entry has, also none whose line is damaged: lines are never replaced."""
    return str(max((int(key) for key in journal.keys if key.isdecimal()), default=0) + 1 + journal.damaged)
