"""A vote as one HTML page that needs nothing else, in the frame of the page of a report, without plots."""

from typing import Any

from ..html import render_plain
from ..rows import Sections
from . import tables
from .words import advice, headline, outcome

__all__ = ["render_page"]

_LEVELS = {"all agree": "low", "odd one out": "critical", "cannot tell": "moderate"}
"""outcome -> the colour of a report's risk that it has"""


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    return render_plain("vote.html", _contents(sections))


def _contents(sections: Sections) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    return {
        "title": str(sections["model"]),
        "toc": [("everyone", "Everyone against everyone"), ("pairs", "Pairs"), ("traces", "Traces")],
        "outcome": outcome(sections),
        "level": _LEVELS.get(sections["outcome"], "other"),
        "headline": headline(sections),
        "advice": advice(sections),
        "everyone": tables.everyone(sections),
        "pairs": tables.pairs(sections),
        "traces": tables.environments(sections),
    }
