"""The rules of the gate: which operators fail, and what cannot be told.

An operator fails if

- it is more than 20% and more than one point worse than in the baseline, and the difference is significant: beyond one
  point by a one-sided test in which the whole check is wrong in at most 5 of 100 cases (Holm's correction), or
- what noise on it costs exceeds the limit, by the same test.

It is inconclusive if it does not fail and no more could be said with so little data: if the smallest change that would
be seen in 4 of 5 cases is larger than the one that is wanted, or if it lies above the limit by an error's breadth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from ..report.comparison.significance import holm
from .evaluating import Evaluation
from .significance import LEVEL, Critical, Difference, Loss, detectable, samples_needed

__all__ = ["POINT", "RESOLUTION", "WORSE", "WORTH_SEEING", "Allowed", "OperatorRow", "Outcome", "judge"]

WORSE, POINT = 0.20, 0.01
"""how much worse an operator may get: by a fifth of what it cost, or by a point"""
RESOLUTION = 0.05
"""the change that a check must be able to see to be passed: as wide as the band of degradations that are LOW"""
WORTH_SEEING = 0.30
"""the same as a share of what the operator cost, where that is more"""

Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class Allowed:
    """What a checkpoint is held to."""

    max_degradation: float | None = None
    """of any operator; None: no limit"""
    resolution: float = RESOLUTION


@dataclass(frozen=True)
class OperatorRow:
    """One operator: what noise on it costs now, what it cost in the baseline, and what follows."""

    operator: str
    outcome: Outcome
    why: str
    """what failed or is missing; empty if it passed"""
    current: float
    current_interval: tuple[float, float]
    baseline: float | None = None
    change: float | None = None
    change_interval: tuple[float, float] | None = None
    p: float | None = None
    """of "at most one point worse", adjusted for the family; None if that was not tested"""
    p_limit: float | None = None
    """of "within the limit", adjusted for the family"""
    detectable: float | None = None
    """the smallest change that would be seen in 4 of 5 cases"""
    detectable_excess: float | None = None
    """the smallest excess over the limit that would be seen in 4 of 5 cases; None without a limit"""
    samples: int = 0
    """how many it would take to see what is wanted, where these were too few"""

    @property
    def is_worse(self) -> bool:
        """Whether it got more than 20% and one point worse, significant or not."""
        return self.baseline is not None and self.change is not None and is_worse(self.baseline, self.change)


def is_worse(before: float, change: float) -> bool:
    """More than a fifth and more than a point."""
    return change > WORSE * max(0.0, before) and change > POINT


@dataclass(frozen=True)
class _Measured:
    """An operator's figures before anything is judged."""

    operator: str
    after: Loss
    before: Loss | None

    @property
    def level(self) -> Difference:
        return Difference.between(self.after)

    @property
    def change(self) -> Difference | None:
        return None if self.before is None else Difference.between(self.after, self.before)


def judge(before: Evaluation | None, after: Evaluation, allowed: Allowed) -> list[OperatorRow]:
    """One row an operator, in the order of the evaluation. Without a `before`, limits alone are held."""
    found = [
        _Measured(name, Loss.of(after.clean, counts), None if before is None else _before(before, name))
        for name, counts in after.noisy.items()
    ]
    ps = _p_values(found, allowed)
    critical = Critical.of(len(ps), len(after.asked))
    rows = {row.operator: _row(row, ps, critical, allowed) for row in found}
    lost = {name: _unmeasured(name, why) for name, why in after.failed.items()}
    order = before.noisy if before is not None else {**rows, **lost}
    return [{**rows, **lost}[name] for name in order]


def _before(before: Evaluation, name: str) -> Loss:
    return Loss.of(before.clean, before.noisy[name])


def _p_values(found: Sequence[_Measured], allowed: Allowed) -> dict[tuple[str, str], float]:
    """(operator, which test) -> p, adjusted over all tests of the check."""
    tests: dict[tuple[str, str], float] = {}
    for row in found:
        if row.change is not None:
            tests[row.operator, "change"] = row.change.p_above(POINT)
        if allowed.max_degradation is not None:
            tests[row.operator, "limit"] = row.level.p_above(allowed.max_degradation)
    return dict(zip(tests, holm(list(tests.values())), strict=True))


def _row(row: _Measured, ps: Mapping[tuple[str, str], float], critical: Critical, allowed: Allowed) -> OperatorRow:
    p, p_limit = ps.get((row.operator, "change")), ps.get((row.operator, "limit"))
    seen, samples = _sight(row, critical, allowed)
    failures = [*_regression(row, p), *_excess(row, p_limit, allowed)]
    doubts = [*_too_blunt(row, seen, samples, allowed), *_near_limit(row, critical, allowed)]
    change = row.change
    return OperatorRow(
        operator=row.operator,
        outcome="failed" if failures else "inconclusive" if doubts else "passed",
        why="; ".join(failures or doubts),
        current=row.after.value,
        current_interval=row.level.interval(),
        baseline=None if row.before is None else row.before.value,
        change=None if change is None else change.value,
        change_interval=None if change is None else change.interval(),
        p=p,
        p_limit=p_limit,
        detectable=seen,
        detectable_excess=None if allowed.max_degradation is None else _excess_seen(row, critical),
        samples=samples,
    )


def _regression(row: _Measured, p: float | None) -> list[str]:
    if row.before is None or row.change is None or p is None:
        return []
    if p >= LEVEL or not is_worse(row.before.value, row.change.value):
        return []
    low, high = row.change.interval()
    return [
        f"noise on it costs {row.after.value:.1%} of accuracy, {row.before.value:.1%} in the baseline: "
        f"{_points(row.change.value)} [{100 * low:.1f}, {100 * high:.1f}] worse (p {p:.2g})"
    ]


def _excess(row: _Measured, p: float | None, allowed: Allowed) -> list[str]:
    if p is None or p >= LEVEL or allowed.max_degradation is None:
        return []
    return [f"noise on it costs {_told(row)} of accuracy, at most {allowed.max_degradation:.1%} is allowed (p {p:.2g})"]


def _sight(row: _Measured, critical: Critical, allowed: Allowed) -> tuple[float | None, int]:
    """The smallest change that would be seen with the power stated, and the samples for the one that is wanted."""
    if row.change is None or row.before is None:
        return None, 0
    right, fifth = row.after.right, WORSE * max(0.0, row.before.value)
    relative = Difference.between(row.after, row.before, 1 + WORSE).stderr
    parts = (
        (row.change, POINT, critical.both),  # to be significant
        (Difference(row.change.value, relative, row.change.n), fifth, critical.powered),  # to be a fifth worse
    )
    seen = max(detectable(change, margin, needed, right) for change, margin, needed in parts)
    wanted = _wanted(row, allowed)
    samples = max(samples_needed(change, margin, needed, right, wanted) for change, margin, needed in parts)
    return seen, samples if seen > wanted else 0


def _wanted(row: _Measured, allowed: Allowed) -> float:
    before = 0.0 if row.before is None else row.before.value
    return max(allowed.resolution, WORTH_SEEING * before)


def _too_blunt(row: _Measured, seen: float | None, samples: int, allowed: Allowed) -> list[str]:
    wanted = _wanted(row, allowed)
    if seen is None or seen <= wanted:
        return []
    smallest = "no change at all" if seen == inf else f"no change below {_points(seen)}"
    enough = f"; about {samples} samples would do" if samples else ""
    return [f"{smallest} would be seen in 4 of 5 cases, {_points(wanted)} are wanted{enough}"]


def _near_limit(row: _Measured, critical: Critical, allowed: Allowed) -> list[str]:
    limit, level = allowed.max_degradation, row.level
    if limit is None:
        return []
    if level.value > limit:
        return [f"noise on it costs {_told(row)} of accuracy: above the limit of {limit:.1%}, but not significantly"]
    excess = _excess_seen(row, critical)
    if level.interval()[1] > limit and excess > allowed.resolution:
        return [
            f"noise on it costs {_told(row)} of accuracy: an excess over the limit of {limit:.1%} would be seen from "
            f"{_points(excess)} on, {_points(allowed.resolution)} are wanted"
        ]
    return []


def _excess_seen(row: _Measured, critical: Critical) -> float:
    return critical.both * row.level.stderr


def _unmeasured(name: str, why: str) -> OperatorRow:
    return OperatorRow(name, "inconclusive", f"could not be measured: {why}", float("nan"), (-inf, inf))


def _told(row: _Measured) -> str:
    low, high = row.level.interval()
    return f"{row.after.value:.1%} [{100 * low:.1f}, {100 * high:.1f}]"


def _points(change: float) -> str:
    return f"{100 * change:.1f} points"
