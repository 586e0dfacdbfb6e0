"""How figures are written for people: three significant digits, with their interval, and words for what is no number.

>>> figure({"value": 0.51373, "low": 0.49068, "high": 0.53787})
'0.514 [0.491, 0.538]'
>>> share(0.2553, (0.1934, 0.3172))
'25.5% [19.3, 31.7]'
>>> number(26139.2), number(1.5e-7), number(float("inf"))
('26,139', '1.50e-7', 'infinite')
"""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any

__all__ = ["figure", "number", "number_or_none", "plural", "share", "visible"]

NOTHING = "–"  # noqa: RUF001 - a dash stands for a figure that there is not
MINUS = "−"  # noqa: RUF001 - as wide as a digit, which a hyphen is not


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
    """A value with its interval, if it has one that is known."""
    if not found:
        return NOTHING
    value, low, high = (found.get(key) for key in ("value", "low", "high"))
    return number(value) + _interval(number, low, high)


def share(value: Any, interval: Sequence[float | None] = ()) -> str:
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


def visible(text: str) -> str:
    """The text with characters that cannot be seen, or that turn the reading order round, written as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


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
