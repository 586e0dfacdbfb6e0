"""Careful reading of sections, of which only the figures were checked on loading, into values that can be shown.

What is no number becomes NaN, what is no text becomes "", what is no table or list an empty one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan
from typing import Any, TypeAlias

__all__ = [
    "UNKNOWN",
    "Interval",
    "Section",
    "count",
    "interval",
    "listed",
    "number",
    "part",
    "sortable",
    "text",
    "whole",
]

Section: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Interval:
    """A figure with its 95% interval; standard error and number of clusters are NaN and 0 where they are not told."""

    value: float
    low: float
    high: float
    stderr: float = nan
    n: int = 0

    @property
    def finite(self) -> bool:
        """Whether there is a figure to draw."""
        return isfinite(self.value)

    def __str__(self) -> str:
        return self._shown("{:.3g}", "{:.3g}", 1)

    @property
    def percent(self) -> str:
        """The same as a share."""
        return self._shown("{:.1%}", "{:.1f}", 100)

    def _shown(self, whole: str, end: str, factor: float) -> str:
        """What is not known of it is left out, or a question mark."""
        if isnan(self.value):
            return "-"
        ends = ["?" if isnan(each) else end.format(factor * each) for each in (self.low, self.high)]
        return whole.format(self.value) + ("" if ends == ["?", "?"] else f" [{ends[0]}, {ends[1]}]")


UNKNOWN = Interval(nan, nan, nan)


def part(sections: Section, name: str) -> Section:
    """A table of a table; an empty one where there is none."""
    found = sections.get(name)
    return found if isinstance(found, Mapping) else {}


def number(value: Any) -> float:
    """A float; NaN for what is no number, or one beyond any float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def sortable(value: float) -> float:
    """The same, with what is unknown below everything: NaN has no place in an order."""
    return -inf if isnan(value) else value


def interval(value: Any) -> Interval:
    """A figure of a report; unknown where there is none."""
    if not isinstance(value, Mapping):
        return UNKNOWN
    low, high, stderr = (number(value.get(name)) for name in ("low", "high", "stderr"))
    return Interval(number(value.get("value")), low, high, stderr, max(0, whole(value.get("n"))))


def text(value: Any) -> str:
    """A text."""
    return value if isinstance(value, str) else ""


def listed(value: Any) -> list[Any]:
    """A list."""
    return list(value) if isinstance(value, (list, tuple)) else []


def count(value: Any) -> str:
    """A whole number as people read it; a question mark where there is none."""
    found = number(value)
    return f"{found:.0f}" if isfinite(found) else "?"


def whole(value: Any) -> int:
    """A whole number; -1 where there is none."""
    found = number(value)
    return int(found) if isfinite(found) else -1
