"""A comparison as one HTML page that needs nothing else, in the frame of the page of a report."""

from typing import Any

from markupsafe import Markup

from ..html import content_security_policy, environment, json_block, page_parts
from ..page.table import Table
from ..rows import Sections
from . import growth, tables
from .words import advice, blame, headline, outcome, subject

__all__ = ["contents", "render_page"]

_STYLES = ("page.css", "divergence.css")
_SCRIPTS = ("plots.js", "scrolling.js", "growth.js", "sorting.js", "controls.js")
_LEVELS = {"WITHIN THE NOISE FLOOR": "low", "DIVERGES": "critical", "INCONCLUSIVE": "moderate"}
"""outcome -> the colour of a report's risk that it has"""
_TITLES = {
    "growth": "Error through depth",
    "layers": "Source or amplifier",
    "repairs": "Fix first",
    "sites": "Sites",
    "missing": "Not compared",
    "traces": "Traces",
    "environments": "Environments",
}


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    style, scripts, reserved = page_parts(_STYLES, _SCRIPTS)
    return (
        environment()
        .get_template("divergence.html")
        .render(
            contents(sections),
            policy=content_security_policy(scripts, [style, ""]),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            data=Markup(json_block({"growth": growth.drawn(sections)})),
            reserved_styles=reserved,
        )
    )


def contents(sections: Sections) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    word = outcome(sections)
    there: dict[str, Any] = {
        "title": str(sections["traces"]["reference"]["model"]),
        "outcome": word,
        "level": _LEVELS.get(word, "other"),
        "headline": headline(sections),
        "blame": blame(sections),
        "advice": advice(sections),
        "facts": list(subject(sections)),
        "differences": tables.differences(sections),
        "growth": {"passes": [", ".join(key) for key in growth.passes(sections)], "marks": growth.marks(sections)}
        if sections["sites"]
        else {},
        "layers": tables.layers(sections),
        "fed": sections["verdict"]["fed"],
        "diverges": sections["verdict"]["outcome"] == "diverges",
        "repairs": tables.repairs(sections),
        "sites": tables.all_sites(sections) if sections["sites"] else {},
        "worst": tables.worst_sites(sections),
        "missing": tables.missing(sections),
        "traces": tables.traces(sections),
        "environments": tables.environments(sections),
    }
    return there | {"toc": [(name, title) for name, title in _TITLES.items() if _has(there[name])]}


def _has(part: Any) -> bool:
    return bool(part.rows) if isinstance(part, Table) else bool(part)
