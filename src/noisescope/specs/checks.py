"""Kinds of checks: each gives a value in its canonical form, or says what it got and what it expected.

A check does not know what its value is called; who calls it puts the name in front (`checked`), be it that of a field,
a flag, or a line in a file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

from ..errors import InputError, quoted, unknown_name

__all__ = ["Check", "checked", "named", "number", "one_of", "optional", "text", "truth", "whole"]

Check: TypeAlias = Callable[[Any], Any]
"""the canonical value, or an InputError"""

LARGEST = 1e38
"""of any number here: float32 ends soon after, and the square is still a number like others"""
LARGEST_WHOLE = 2**63 - 1


def checked(values: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The values that have a check, canonical; an error tells of all that are wrong."""
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, check in checks.items():
        if name in values:
            try:
                found[name] = check(values[name])
            except InputError as error:
                problems += (named(name, problem) for problem in error.problems)
    if problems:
        raise InputError(*problems)
    return found


def named(name: str, problem: str) -> str:
    """The problem with the name of what has it in front, once."""
    return problem if problem.startswith(f"{name}: ") else f"{name}: {problem}"


def whole(least: int) -> Check:
    """A whole number of at least so much."""

    def check(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            raise InputError(f"got {_shown(given)}, expected a whole number of at least {least}")
        if given > LARGEST_WHOLE:
            raise InputError(f"got {_shown(given)}, expected a whole number below 2^63")
        return given

    return check


def number(*, above: float | None = None, least: float | None = None, most: float = LARGEST) -> Check:
    """A number above, or of at least, so much; no larger than anyone means."""
    expected = f"a number > {above:g}" if above is not None else f"a number >= {least:g}"

    def check(given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, Real):
            raise InputError(f"got {quoted(given)}, expected {expected}")
        try:
            found = float(given)
        except OverflowError:  # of a whole number with hundreds of digits
            found = math.inf
        low = (above is not None and not found > above) or (least is not None and not found >= least)
        if low or found > most:
            end = f", at most {most:g}" if most < found < math.inf else ""
            raise InputError(f"got {_shown(given)}, expected {expected}{end}")
        return found

    return check


def _shown(given: Any) -> str:
    """A value as `quoted` shows it; Python does not write out whole numbers of thousands of digits."""
    if isinstance(given, int) and abs(given) > 10**40:
        return f"a number of {given.bit_length()} bits"
    return quoted(given)


def truth(given: Any) -> bool:
    """True or false."""
    if not isinstance(given, bool):
        raise InputError(f"got {quoted(given)}, expected true or false")
    return given


def text(given: Any) -> str:
    """Some text."""
    if not isinstance(given, str) or not given:
        raise InputError(f"got {quoted(given)}, expected text")
    return given


def one_of(what: str, names: Sequence[str]) -> Check:
    """One of these names; another is told the nearest."""

    def check(given: Any) -> str:
        if given not in names:
            raise unknown_name(what, given, names)
        return str(given)

    return check


def optional(check: Check) -> Check:
    """None, or what the check gives."""
    return lambda given: None if given is None else check(given)
