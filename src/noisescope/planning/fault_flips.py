"""Bit flips in a share of an operator's operations, as radiation and weak cells make them.

An operation is one call of the operator for one sequence; a struck one has one bit of one of its values inverted.
Which are struck is drawn before anything runs, keyed: a sequence in which none is cannot change, and is not run. So
thousands of draws cost what the struck ones cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, NothingMatched
from ..keys import Key
from ..noise import BitFlip
from ..noise.family import Measured
from ..specs import Selection, parse_layers
from .fault_cases import FaultCase
from .fault_judging import Check, FaultResult, bounded
from .fault_rows import BATCH, Rows

__all__ = ["run_flips"]


@dataclass(frozen=True)
class Draw:
    """One run of one row: which of its operations are struck, by the names of their sites."""

    number: int
    row: int
    struck: frozenset[str]


@dataclass(frozen=True)
class Upsets:
    """The noise: one inverted bit in each struck operation of a batch, whose rows are these draws."""

    scale: float
    draws: tuple[Draw, ...] = ()
    name: ClassVar[str] = "upsets"
    sparse: ClassVar[bool] = True

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        """Inverts, in place. A value that is not laid out by rows, as that of an expert, is one operation of all."""
        rows = value.view(len(self.draws), -1) if value.numel() % len(self.draws) == 0 else value.view(1, -1)
        for at, draw in enumerate(self.draws):
            if key.site in draw.struck:
                row, own = rows[min(at, len(rows) - 1)], Key(key.seed, key.site, draw.number)
                where = int(torch.randint(row.numel(), (), generator=own.part("element").generator()))
                BitFlip(1.0).disturb_(row[where : where + 1], 1.0, own)

    def dose(self, seen: Measured) -> float:
        """Share of elements that changed."""
        return seen.changed / seen.elements if seen.elements else 0.0


class Names:
    """A noise that changes nothing and notes where it was asked to."""

    name: ClassVar[str] = "names"
    sparse: ClassVar[bool] = True
    scale = 1.0

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        """Notes the site."""
        self.found[key.site] = None

    def dose(self, seen: Measured) -> float:
        """None."""
        return 0.0


def run_flips(case: FaultCase, rows: Rows) -> FaultResult:
    """Degradation, and the share of predictions without finite logits, over all draws."""
    asked, limits = case.parameters, case.acceptance_criteria
    draws, seed = asked["draws"], asked["seed"]
    if draws < 1:
        raise InputError(f"{case.test_id}: draws: got {draws}, expected at least 1")
    operators = tuple(asked["operators"]) if asked["operators"] is not None else None
    selection = Selection(layers=parse_layers(asked["layers"]), operators=operators)
    clean, times = rows.clean, np.bincount(np.arange(draws) % len(rows), minlength=len(rows))
    lost, non_finite = np.zeros(len(rows)), np.zeros(len(rows))
    struck = _struck(draws, len(rows), _sites(rows, selection), share=asked["share_of_operations"], seed=seed)
    for start in range(0, len(struck), BATCH):
        batch = struck[start : start + BATCH]
        filled = (*batch, *[Draw(-1, batch[0].row, frozenset())] * (BATCH - len(batch)))
        found = rows.disturbed([draw.row for draw in filled], Upsets(1.0, filled), selection, seed=seed)
        for at, draw in enumerate(batch):
            lost[draw.row] += clean.correct[draw.row] - found.correct[at]
            non_finite[draw.row] += found.non_finite[at]
    degradation = bounded(lost, clean.correct * times, draws=draws)
    nan_rate = bounded(non_finite, clean.tokens * times, draws=draws, positive=True)
    checks = (
        Check.at_most("degradation", degradation, limits["max_degradation"]),
        Check.at_most("NaN rate", nan_rate, limits["max_nan_rate"]),
    )
    return FaultResult(case, checks, {"degradation": degradation, "nan_rate": nan_rate})


def _sites(rows: Rows, selection: Selection) -> list[str]:
    """The operations of one sequence: every call that the selection touches."""
    names = Names()
    rows.disturbed([0], names, selection)
    if not names.found:
        raise NothingMatched(f"{selection.describe()}: the model has no such operation")
    return list(names.found)


def _struck(draws: int, rows: int, sites: Sequence[str], *, share: float, seed: int) -> list[Draw]:
    """The draws in which something is struck."""
    found = []
    for number in range(draws):
        chances = torch.rand(len(sites), generator=Key(seed, "operations", number).generator())
        at = (chances < share).nonzero().flatten().tolist()
        if at:
            found.append(Draw(number, number % rows, frozenset(sites[one] for one in at)))
    return found
