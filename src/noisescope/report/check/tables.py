"""The tables of a check: the operators, what was asked, and the checkpoints before."""

from math import isfinite

from ...measure.readings import read
from ..figures import NOTHING, number, share
from ..page.table import Kind, Table
from ..rows import Sections, facts
from .words import points, sight

__all__ = ["asked", "history", "operators"]


def operators(sections: Sections) -> Table:
    """One row an operator: what failed first, then what is unclear, each by what noise on it costs."""
    columns: dict[str, Kind] = {
        "operator": "name",
        "verdict": "text",
        "accuracy lost": "figure",
        "in the baseline": "figure",
        "worse by": "figure",
        "p": "figure",
        "seen in 4 of 5 cases": "figure",
        "severity": "word",
        "why": "text",
    }
    order = ("failed", "inconclusive", "passed")
    ranked = sorted(sections["rows"], key=lambda row: (order.index(row["outcome"]), -_size(row["current"])))
    rows = [
        (
            row["operator"],
            row["outcome"],
            share(row["current"], row["current_interval"]) if isfinite(row["current"]) else NOTHING,
            share(row["baseline"]) if row["baseline"] is not None else NOTHING,
            points(row["change"], row["change_interval"]),
            NOTHING if row["p"] is None else number(row["p"]),
            sight(row),
            read("relative degradation", row["current"]) if isfinite(row["current"]) else "",
            row["why"],
        )
        for row in ranked
    ]
    return Table.of("What noise on each operator costs, with 95% intervals", columns, rows)


def _size(value: float) -> float:
    return value if isfinite(value) else -1.0


def asked(sections: Sections) -> Table:
    """What was measured, down to the digest of the tokens."""
    columns: dict[str, Kind] = {"what": "text", "value": "path"}
    return Table.of("What was measured", columns, facts({**sections["question"], **sections["environment"]}))


def history(sections: Sections) -> Table:
    """The checkpoints that were checked before, and this one."""
    columns: dict[str, Kind] = {
        "checkpoint": "name",
        "verdict": "text",
        "most fragile": "name",
        "accuracy lost": "figure",
        "clean accuracy": "figure",
    }
    rows = []
    for entry in sections.get("history", ()):
        worst = max(entry["degradation"], key=lambda name: entry["degradation"][name][0], default="")
        lost = share(entry["degradation"][worst][0], entry["degradation"][worst][1:]) if worst else NOTHING
        rows.append((entry["label"], entry["outcome"], worst or NOTHING, lost, share(entry["accuracy"])))
    return Table.of("Checkpoints so far", columns, rows)
