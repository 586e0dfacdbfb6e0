"""The rows of a comparison as text, the same for every format.

row            verdict  KL before  after  factor             accuracy lost   change, points    p, adjusted
operator head  worse    0.494      0.900  1.82 [1.50, 2.20]  25.0% -> 31.0%  +6.0 [1.0, 11.0]  1e-05
"""

from collections.abc import Callable, Iterable
from math import isfinite

from ..escaping import short
from ..figures import number, share
from ..rows import Place
from .differences import Differences, RowDifference
from .significance import Shift

__all__ = ["HEAD", "HEAD_OF_MAP", "LONGEST", "alone", "cells"]

HEAD = ("row", "verdict", "KL before", "after", "factor", "accuracy lost", "change, points", "p, adjusted")
HEAD_OF_MAP = tuple(label for label in HEAD if label not in ("accuracy lost", "change, points"))
"""cells have no accuracy"""
LONGEST = 700
"""characters of a sentence, enough for all that can differ between two runs"""


def cells(row: RowDifference, name: Callable[[str], str] = short) -> tuple[str, ...]:
    """What is below HEAD, or HEAD_OF_MAP for what is on the map. `name` is how a name from a report is written."""
    factor = row.kl if row.kl.kind == "factor" else None  # from zero or to zero there is none
    found = {
        "row": f"{row.kind} {name(row.name)}",
        "verdict": "" if row.verdict == "not distinguishable" else row.verdict,
        "KL before": _value(row.before, name),
        "after": _value(row.after, name),
        "factor": _shift(factor, number),
        "accuracy lost": _lost(row),
        "change, points": _shift(row.lost, lambda change: f"{100 * change:+.1f}"),
        "p, adjusted": f"{row.p:.2g}" if isfinite(row.p) else "-",
    }
    return tuple(found[label] for label in (HEAD_OF_MAP if row.on_map else HEAD))


def alone(found: Differences) -> Iterable[str]:
    """Rows that only one of the reports has, a line for each kind."""
    for where, rows in (("before", found.only_before), ("after", found.only_after)):
        for kind, names in rows.items():
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            yield f"only {where}: {kind} {', '.join(names[:6])}{more}"


def _value(place: Place, name: Callable[[str], str]) -> str:
    if place.failed:
        return f"FAILED: {name(place.failed)}"
    return number(place.kl.value) if isfinite(place.kl.value) else "-"


def _lost(row: RowDifference) -> str:
    if not row.before.conclusive or not row.after.conclusive:
        return "-"
    return f"{share(row.before.lost.value)} -> {share(row.after.lost.value)}"


def _shift(change: Shift | None, written: Callable[[float], str]) -> str:
    if change is None or not isfinite(change.effect):
        return "-"
    value, low, high = map(written, (change.effect, change.low, change.high))
    return f"{value} [{low}, {high}]"
