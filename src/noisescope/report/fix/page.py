"""A minimal fix as one HTML page that needs nothing else, in the frame of the page of a report, without plots."""

from typing import Any

from ..html import render_plain
from ..rows import Sections
from . import tables
from .words import basis, headline

__all__ = ["render_page"]


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    return render_plain("fix.html", _contents(sections))


def _contents(sections: Sections) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    toc = [("raised", "What to raise"), ("steps", "Every step")]
    return {
        "title": str(sections["model"]),
        "toc": [entry for entry in toc if entry[0] != "raised" or sections["raised"]],
        "headline": headline(sections),
        "basis": basis(sections),
        "count": len(sections["raised"]) if sections["met"] else "none",
        "level": "other" if sections["met"] else "critical",
        "raised": tables.raised(sections),
        "steps": tables.steps(sections),
    }
