"""Numbers in answers: the last one of a text, the one a reference gives, and whether two are the same.

    last_number("so she has 3 * 4 = $1,200.")     1200
    reference_number("3 * 400 = 1200\\n#### 1,200")  1200

Commas between digits are dropped, so `3,4` reads as 34, as the usual scorers of GSM8K read it; fractions are not
computed, `1/2` ends in 2.
"""

import re
from decimal import Decimal

__all__ = ["last_number", "reference_number", "same_number"]

TOLERANCE = Decimal("0.01")

_SIGN = r"(?:(?<![0-9A-Za-z)\]])-)?"  # in 10-5 and x-5 it is a subtraction
_DIGITS = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,3}(?![0-9A-Za-z]))?"
_NUMBER = re.compile(_SIGN + _DIGITS + _EXPONENT)
_GROUPING = re.compile(r"(?<=[0-9]),(?=[0-9])")
_MARK = "####"
_MOST_DIGITS = 300


def last_number(text: str) -> Decimal | None:
    """The last number in the text, None if there is none.

    >>> last_number("16 - 7 = 9 eggs, at $2 each: $18.")
    Decimal('18')
    """
    found = _NUMBER.findall(_plain(text))
    return Decimal(found[-1]) if found else None


def reference_number(answer: object) -> Decimal | None:
    """The number that a reference answer stands for: what follows `####`, or a text or value that is a number alone.

    >>> reference_number("He sells 9.\\n#### 18"), reference_number("$1,200.00"), reference_number("12 eggs")
    (Decimal('18'), Decimal('1200.00'), None)
    """
    if isinstance(answer, str):
        return _sensible(_written(answer))
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        return None
    return _sensible(Decimal(answer) if isinstance(answer, int) else Decimal(str(answer)))


def _written(answer: str) -> Decimal | None:
    _, mark, after = answer.rpartition(_MARK)
    if mark:
        return last_number(after)
    alone = _plain(after).strip().rstrip(".%").strip()
    return Decimal(alone) if _NUMBER.fullmatch(alone) else None


def _sensible(number: Decimal | None) -> Decimal | None:
    """The number, if it is finite and short enough to compute with."""
    return number if number is not None and number.is_finite() and number.adjusted() < _MOST_DIGITS else None


def same_number(one: Decimal | None, other: Decimal) -> bool:
    """True if both are numbers that differ by no more than 0.01."""
    return one is not None and abs(one - other) <= TOLERANCE


def _plain(text: str) -> str:
    return _GROUPING.sub("", text).replace("$", "").replace("\N{MINUS SIGN}", "-")
