"""How figures are written for people: three significant digits, with their interval, and words for what is no number.

>>> str(Interval(0.51373, 0.49068, 0.53787))
'0.514 [0.491, 0.538]'
>>> share(0.2553, (0.1934, 0.3172))
'25.5% [19.3, 31.7]'
>>> number(26139.2), number(1.5e-7), number(float("inf"))
('26,139', '1.50e-7', 'infinite')
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any

__all__ = ["NOTHING", "UNKNOWN", "Interval", "figure", "in_ascii", "number", "number_or_none", "plural", "share"]

NOTHING = "–"  # noqa: RUF001 - a dash stands for a figure that there is not
MINUS = "−"  # noqa: RUF001 - as wide as a digit, which a hyphen is not


@dataclass(frozen=True)
class Interval:
    """A figure with its 95% interval; standard error and number of clusters are NaN and 0 where they are not told."""

    value: float
    low: float
    high: float
    stderr: float = nan
    n: int = 0

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> "Interval":
        """A figure of a report; unknown where there is none."""
        if not found:
            return UNKNOWN
        return cls(found["value"], found["low"], found["high"], found["stderr"], found["n"])

    @property
    def finite(self) -> bool:
        """Whether there is a figure to draw."""
        return isfinite(self.value)

    def __str__(self) -> str:
        if isnan(self.value) and not self.n:
            return NOTHING
        return number(self.value) + _interval(number, self.low, self.high)

    @property
    def percent(self) -> str:
        """The same as a share."""
        return share(self.value, (self.low, self.high))


UNKNOWN = Interval(nan, nan, nan)


def number(value: Any) -> str:
    """Three significant digits; whole numbers in full."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not isfinite(value):
        return "not a number" if isnan(value) else "infinite" if value > 0 else f"{MINUS}infinite"
    sign, size = MINUS if value < 0 else "", abs(value)
    if isinstance(value, int) or 1000 <= size < 1e7:
        return f"{sign}{size:,.0f}"
    return sign + _digits(size)


def figure(found: Mapping[str, Any] | None) -> str:
    """A figure of a report with its interval, if it has one that is known."""
    return str(Interval.of(found))


def share(value: float | None, interval: Sequence[float | None] = ()) -> str:
    """A share in percent, to a tenth, with its interval."""
    known = number_or_none(value)
    if known is None:
        return NOTHING
    return _percent(known) + "%" + (_interval(_percent, *interval) if interval else "")


def plural(count: int, thing: str, things: str = "") -> str:
    """As in "1 layer", "30 layers"."""
    return f"{number(count)} {thing if count == 1 else things or thing + 's'}"


def number_or_none(value: Any) -> float | None:
    """What can be drawn: a finite number, or nothing."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    return float(value) if known else None


def in_ascii(text: str) -> str:
    """The same with the signs that every terminal and every font has."""
    return text.replace(MINUS, "-").replace(NOTHING, "-")


def _digits(size: float) -> str:
    """Three significant digits, the zeros at the end too; powers of ten beyond what can be counted at a glance."""
    if size == 0:
        return "0"
    if size < 1e-4 or size >= 1e7:
        mantissa, power = f"{size:.2e}".split("e")
        return f"{mantissa}e{int(power)}"
    return f"{size:#.3g}".rstrip(".").replace("1.00e+03", "1,000")


def _percent(value: float | None) -> str:
    if value is None or not isfinite(value):
        return number(value)
    if abs(value) >= 100:
        return number(100.0 * value)
    written = f"{100 * abs(value):.1f}"
    return (MINUS if value < 0 and float(written) else "") + written


def _interval(written: Any, low: float | None, high: float | None) -> str:
    if low is None or high is None or isnan(low) or isnan(high):
        return ""
    return f" [{written(low)}, {written(high)}]"
