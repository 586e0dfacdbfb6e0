"""The tables of a migration plan: its priorities, and its layers with what is known of them."""

from ..layers import label
from ..page.table import Kind, Table
from ..rows import Sections
from .words import check, figure, layers, percent

__all__ = ["priorities", "risks"]


def priorities(sections: Sections) -> Table:
    """What becomes of which layers."""
    columns: dict[str, Kind] = {
        "priority": "figure",
        "layers": "text",
        "precision": "name",
        "check": "text",
        "if a layer misses": "text",
    }
    rows = [
        (str(group["priority"]), layers(group["layers"]), group["precision"], check(group), group["fallback"])
        for group in sections["priorities"]
    ]
    return Table.of("Priorities", columns, rows)


def risks(sections: Sections) -> Table:
    """Every layer, the riskiest first."""
    compared = sections["comparison"] is not None
    columns: dict[str, Kind] = {
        "layer": "name",
        "priority": "figure",
        "precision": "name",
        "risk, nats per token": "figure",
    }
    if compared:
        columns |= {"sensitivity, nats per token": "figure", "divergence": "figure", "MAPE": "figure"}
    columns |= {"evidence": "text", "if it misses": "text"}
    rows = []
    for row in sections["rows"]:
        more = [figure(row["sensitivity"]), figure(row["divergence"]), percent(row["mape"])] if compared else []
        rows.append(
            (
                label(row["layer"]),
                str(row["priority"]),
                row["precision"],
                figure(row["risk"]),
                *more,
                "; ".join(row["evidence"]),
                row["fallback"],
            )
        )
    return Table.of("Layers, the riskiest first", columns, rows)
