"""A verdict as one HTML page that needs nothing else, in the frame of the page of a report."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ..escaping import visible
from ..figures import number, plural
from ..html import content_security_policy, environment, json_block, page_parts
from ..layers import label
from ..page import trust
from ..page.table import Kind, Table
from ..rows import Sections
from . import cells
from .words import alarms, coverage, headline, method_sentence, outcome, subject, truth_line

__all__ = ["render_page"]

_STYLES = ("page.css", "verdict.css")
_SCRIPTS = ("plots.js", "scrolling.js", "grid.js", "evidence.js", "controls.js")
_LEVELS = {"HEALTHY": "low", "FAULTY": "critical", "INCONCLUSIVE": "moderate"}
"""outcome -> the colour of a report's risk that it has"""
_TITLES = {
    "evidence": "Evidence",
    "suspects": "Suspects",
    "missing": "What is missing",
    "truth": "Truth",
    "methods": "Methods",
    "ranking": "Layers ranked",
    "repeats": "Repeatability",
    "modes": "Precision modes",
    "coverage": "Coverage",
    "costs": "Cost",
    "configuration": "Configuration",
    "environment": "Environment",
}


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    found = cells.cells(sections)
    style, scripts, reserved = page_parts(_STYLES, _SCRIPTS)
    return (
        environment()
        .get_template("verdict.html")
        .render(
            _contents(sections, found),
            policy=content_security_policy(scripts, [style, ""]),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            data=Markup(json_block({"evidence": _drawn(found)})),
            reserved_styles=reserved,
        )
    )


def _contents(sections: Sections, found: Sequence[cells.Cell]) -> dict[str, Any]:
    """What is on the page, as text and tables."""
    word = outcome(sections)
    there: dict[str, Any] = {
        "title": str(sections["config"].get("model", "")),
        "outcome": word,
        "level": _LEVELS.get(word, "other"),
        "headline": headline(sections),
        "alarms": alarms(sections),
        "facts": list(subject(sections)),
        "evidence": _evidence(found),
        "suspects": [_suspect(row) for row in sections["suspects"]],
        "missing": list(sections["verdict"]["missing"]),
        "truth": _truth(sections),
        "methods": _methods(sections),
        "ranking": _ranking(sections),
        "repeats": _names("Calls that come out otherwise every time", sections["non_deterministic"]),
        "modes": list(sections["precision_modes"]),
        "coverage": _coverage(sections),
        "costs": trust.costs(sections),
        "cost": number(sections["cost"]["forward_pass_equivalents"]),
        "configuration": trust.configuration(sections),
        "environment": trust.environment(sections),
    }
    return there | {"toc": [(name, title) for name, title in _TITLES.items() if _has(there[name])]}


def _has(part: Any) -> bool:
    return bool(part.rows) if isinstance(part, Table) else bool(part)


def _drawn(found: Sequence[cells.Cell]) -> dict[str, Any]:
    """Positions as numbers, everything that is read as text, written already."""
    return {
        "layers": [visible(label(layer)) for layer in cells.columns(found)],
        "operators": [visible(name) for name in cells.operators(found)],
        "cells": [{**cell, "told": [*map(visible, cell["told"])]} for cell in cells.drawn(found)],
    }


def _evidence(found: Sequence[cells.Cell]) -> dict[str, Any]:
    states = {cell.state for cell in found}
    asked = bool(states - {"unasked"})
    return {"table": cells.table(found), "states": states, "asked": asked} if found else {}


def _suspect(row: Mapping[str, Any]) -> dict[str, Any]:
    again = "gives other bits every time" if row["stochastic"] else "gives the same bits every time"
    told = [plural(row["calls"], "call is", "calls are") + " off", again] if row["operator"] != "weight" else []
    return {**row, "remark": "; ".join(told)}


def _truth(sections: Sections) -> Table:
    columns: dict[str, Kind] = {"fault": "name", "where, and how it fared": "text", "elements changed": "figure"}
    rows = [
        (row["fault"], truth_line(row), f"{number(row['changed'])} of {number(row['elements'])}")
        for row in sections["truth"]
    ]
    return Table.of("Faults that were simulated", columns, rows)


def _methods(sections: Sections) -> Table:
    columns: dict[str, Kind] = {"method": "name", "what it found": "text", "forward passes": "figure"}
    rows = [(row["method"], method_sentence(row), number(row["forwards"])) for row in sections["evidence"]]
    return Table.of("What each method found", columns, rows)


def _ranking(sections: Sections) -> Table:
    """What the ranking of layers by their answer to noise has, if it was asked for."""
    rows = sections.get("srdd") or sections.get("fingerprint", ())
    columns: dict[str, Kind] = {name.replace("_", " "): "figure" for row in rows[:1] for name in row}
    return Table.of("The oddest first", columns, [tuple(map(number, row.values())) for row in rows])


def _coverage(sections: Sections) -> dict[str, Any]:
    found = sections["coverage"]
    lists = {"unjudged": "Calls without a known rounding bound", "hidden": "Kernels that could not be looked into"}
    return {
        "facts": list(coverage(sections)),
        "tables": [_names(title, found[name]) for name, title in lists.items() if found.get(name)],
    }


def _names(title: str, names: Sequence[str]) -> Table:
    return Table.of(title, {"site": "path"}, [(name,) for name in names])
