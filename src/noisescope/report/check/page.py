"""A check as one HTML page that needs nothing else, in the frame of the page of a report, without plots."""

from base64 import b64encode
from typing import Any

from ..html import render_plain
from ..rows import Sections
from . import tables
from .words import advice, headline, outcome, rules, subject, warning

__all__ = ["render_page"]

_LEVELS = {"passed": "low", "failed": "critical", "inconclusive": "moderate"}
"""outcome -> the colour of a report's risk that it has"""


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    return render_plain("check.html", _contents(sections), styles=("check.css",))


def _contents(sections: Sections) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    toc = [
        ("operators", "Operators"),
        ("history", "History"),
        ("rules", "How it was judged"),
        ("asked", "What was measured"),
    ]
    has_history = bool(sections.get("history"))
    told = headline(sections).partition(": ")[2]
    return {
        "title": str(sections["model"]),
        "toc": [entry for entry in toc if has_history or entry[0] != "history"],
        "outcome": outcome(sections),
        "level": _LEVELS.get(sections["outcome"], "other"),
        "headline": f"{told[:1].upper()}{told[1:]}",
        "subject": subject(sections),
        "warning": warning(sections),
        "advice": advice(sections),
        "operators": tables.operators(sections),
        "history": tables.history(sections),
        "trend": _trend(sections) if has_history else "",
        "rules": rules(sections),
        "asked": tables.asked(sections),
    }


def _trend(sections: Sections) -> str:
    """The picture itself, as an address that holds it."""
    from .trend import render_trend

    drawn = render_trend(sections["history"], sections["rules"]["max_degradation"])
    return f"data:image/png;base64,{b64encode(drawn).decode('ascii')}"
