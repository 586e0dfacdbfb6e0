"""A migration plan as one HTML page that needs nothing else, in the frame of the page of a report, without plots."""

from typing import Any

from ..html import render_plain
from ..rows import Sections
from . import tables
from .words import basis, headline

__all__ = ["render_page"]


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    return render_plain("migration.html", _contents(sections))


def _contents(sections: Sections) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    steps = [(step["why"], step["command"]) for step in sections["commands"]]
    toc = [("priorities", "Priorities"), ("validate", "Validate"), ("risks", "Layers")]
    return {
        "title": str(sections["model"]),
        "toc": [entry for entry in toc if entry[0] != "validate" or steps],
        "headline": headline(sections),
        "basis": basis(sections),
        "count": sum(row["priority"] == 1 for row in sections["rows"]),
        "priorities": tables.priorities(sections),
        "steps": steps,
        "risks": tables.risks(sections),
    }
