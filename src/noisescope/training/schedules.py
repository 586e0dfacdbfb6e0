"""How large the noise is as training goes on: constant, stages, linear, cosine.

    constant      0.05  0.05  0.05  0.05  0.05  0.05
    stages, 3     0     0     0.01  0.01  1e-4  1e-4      the first stage is clean, the others go down exponentially
    linear        0.01  0.008 0.006 0.004 0.002 0
    cosine        0.01  0.009 0.0065 0.0035 0.001 0

A schedule is a pure function of where training is, so that a resumed run goes on where it was. It knows nothing of
models or trainers, and keeps no state.
"""

from dataclasses import dataclass
from math import cos, pi
from typing import Protocol, runtime_checkable

from ..errors import InputError, quoted
from ..specs import check_scale

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "ExponentialStages",
    "LinearSchedule",
    "Schedule",
    "as_schedule",
    "largest_of",
]


@runtime_checkable
class Schedule(Protocol):
    """A noise scale for each step."""

    def at(self, step: int, total: int) -> float:
        """The scale in step number `step`, counted from 0, of `total`; that of the last one from there on."""
        ...


@dataclass(frozen=True)
class ConstantSchedule:
    """The same scale throughout.

    >>> ConstantSchedule(0.05).at(7, 10)
    0.05
    """

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_scale(self.scale))

    def at(self, step: int, total: int) -> float:
        """The scale."""
        return self.scale

    @property
    def largest(self) -> float:
        """The scale."""
        return self.scale


@dataclass(frozen=True)
class ExponentialStages:
    """`stages` equal parts of the training: the first without noise, the others from `start` to `end`.

    With K stages, stage 0 has scale 0 and stage i + 1 has start * (end / start)^(i / (K - 2)), i = 0 .. K - 2. Two
    stages are 0, then `start`; a single one has `start` throughout.

    >>> schedule = ExponentialStages(1e-2, 1e-4, stages=4)
    >>> [round(schedule.at(step, 8), 6) for step in range(8)]
    [0.0, 0.0, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001]
    """

    start: float = 1e-2
    end: float = 1e-4
    stages: int = 10

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, _above_zero(getattr(self, name), what=name))
        if isinstance(self.stages, bool) or not isinstance(self.stages, int) or self.stages < 1:
            raise InputError(f"stages: got {quoted(self.stages)}, expected a whole number of at least 1")

    def at(self, step: int, total: int) -> float:
        """The scale of the stage that the step is in."""
        return self.of_stage(min(step, total - 1) * self.stages // total)

    @property
    def largest(self) -> float:
        """The largest of the stages."""
        return max(map(self.of_stage, range(self.stages)))

    def of_stage(self, stage: int) -> float:
        """The scale of one stage."""
        if self.stages == 1:
            return self.start
        if stage == 0:
            return 0.0
        if self.stages == 2:
            return self.start
        return float(self.start * (self.end / self.start) ** ((stage - 1) / (self.stages - 2)))


@dataclass(frozen=True)
class _FromTo:
    """From `start`, in the first step, to `end`, in the last."""

    start: float
    end: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, check_scale(getattr(self, name), what=name))

    @property
    def largest(self) -> float:
        """That of one of the ends."""
        return max(self.start, self.end)

    def _between(self, share: float) -> float:
        """That far along; exact at both ends."""
        return (1 - share) * self.start + share * self.end


@dataclass(frozen=True)
class LinearSchedule(_FromTo):
    """In a straight line from `start`, in the first step, to `end`, in the last.

    >>> [LinearSchedule(0.01, 0.0).at(step, 5) for step in range(5)]
    [0.01, 0.0075, 0.005, 0.0025, 0.0]
    """

    def at(self, step: int, total: int) -> float:
        """The scale that far along the line."""
        return self._between(_share(step, total))


@dataclass(frozen=True)
class CosineSchedule(_FromTo):
    """Half a cosine from `start`, in the first step, to `end`, in the last: slow at both ends.

    >>> [round(CosineSchedule(0.01, 0.0).at(step, 5), 5) for step in range(5)]
    [0.01, 0.00854, 0.005, 0.00146, 0.0]
    """

    def at(self, step: int, total: int) -> float:
        """The scale that far along the curve."""
        return self._between(0.5 * (1 - cos(pi * _share(step, total))))


def as_schedule(given: object, *, what: str = "schedule") -> Schedule:
    """A schedule, from one or from a number, which is a constant scale."""
    if isinstance(given, Schedule) and not isinstance(given, type):
        return given
    return ConstantSchedule(check_scale(given, what=what))  # type: ignore[arg-type]  # it checks what it is given


def largest_of(schedule: Schedule) -> float | None:
    """The largest scale of a schedule of ours; None for another one, which tells only where training is."""
    found = getattr(schedule, "largest", None)
    return found if isinstance(found, float) else None


def _share(step: int, total: int) -> float:
    """0 in the first step, 1 in the last."""
    return min(step, total - 1) / (total - 1) if total > 1 else 0.0


def _above_zero(given: float, *, what: str) -> float:
    scale = check_scale(given, what=what)
    if scale == 0:
        raise InputError(f"{what}: got 0, expected a number > 0: between stages the scale is multiplied")
    return scale
