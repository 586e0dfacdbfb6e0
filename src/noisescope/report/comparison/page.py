"""Two reports side by side as one HTML page, in the frame of the page of a report, without plots.

Levels are open where they are significant; the rest, and all of the map, is folded.
"""

from collections.abc import Sequence
from typing import Any

from ..escaping import visible
from ..page.table import Kind, Table
from .differences import SIGNIFICANT, Differences, RowDifference
from .lines import HEAD, HEAD_OF_MAP, LONGEST, alone, cells

__all__ = ["render_page"]

_KINDS: dict[str, Kind] = {"row": "name", "verdict": "word", "KL before": "run", "after": "run"}
_OPEN = 24
"""significant rows that are open"""
_TITLES = {
    "levels": "Levels",
    "map": "Map",
    "runs": "What differs",
    "reading": "How to read it",
}


def render_page(found: Differences) -> str:
    """The whole page as text; the same reports give the same text."""
    from ..html import render_plain

    return render_plain("differences.html", _contents(found), styles=("differences.css",), words=SIGNIFICANT)


def _contents(found: Differences) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    there = {"levels": found.levels, "map": found.on_map, "runs": found.facts.all, "reading": True}
    facts = [(fact.name, fact.before, fact.after) for fact in found.facts.all]
    decided, rest = _split("levels", HEAD, found.levels)
    first, more = decided.split(_OPEN)
    return {
        "title": " → ".join(dict.fromkeys(found.models)),
        "toc": [(name, title) for name, title in _TITLES.items() if there[name]],
        "first": [
            ("what differs", found.facts.compared, "nothing: the same model in the same environment"),
            ("asked differently", found.facts.asked, "nothing: the same question of the same data"),
        ],
        "verdict": _sentence(found.verdict),
        "headline": [(fact.name, f"{fact.before} → {fact.after}") for fact in found.headline],
        "levels": {"open": first, "folded": [more, rest]} if found.levels else None,
        "map": [table for name, rows in found.on_map.items() for table in _split(name, HEAD_OF_MAP, rows)],
        "facts": Table.of("configuration and environment", {"what": "name", "before": "text", "after": "text"}, facts),
        "remarks": [_sentence(line) for line in (*alone(found), *found.caveats)],
    }


def _split(name: str, head: Sequence[str], rows: Sequence[RowDifference]) -> tuple[Table, Table]:
    """Those that are significant, and the others."""
    columns: dict[str, Kind] = {label: _KINDS.get(label, "figure") for label in head}
    decided = [cells(row) for row in rows if row.significant]
    rest = [cells(row) for row in rows if not row.significant]
    return (
        Table.of(f"{name}, significant", columns, decided),
        Table.of(f"{name}, not distinguishable", columns, rest),
    )


def _sentence(text: str) -> Any:
    """Longer than a name may be, and escaped as one."""
    from markupsafe import escape

    return escape(visible(text, longest=LONGEST))
