"""The tables of a precision plan: what was verified, which layer is in which format, every weight, every check."""

from collections.abc import Sequence
from typing import Any

from ..figures import Interval, number
from ..layers import in_model_order, inner_path, label
from ..page.table import Kind, Table
from ..rows import Sections

__all__ = ["by_layer", "checks", "verified", "weights"]


def verified(sections: Sections) -> Table:
    """What was run on text that was not used before."""
    columns: dict[str, Kind] = {
        "": "name",
        "bits": "figure",
        "KL measured, nats per token": "figure",
        "KL predicted": "figure",
    }
    rows = [
        (row["name"], number(row["bits"]), str(Interval.of(row["kl"])), number(row["predicted_kl"]))
        for row in sections["verified"]
    ]
    return Table.of("Run on text that was not used for the plan", columns, rows)


def by_layer(sections: Sections) -> Table:
    """Layers down, weights across."""
    found: dict[Any, dict[str, str]] = {}
    for row in sections["weights"]:
        found.setdefault(row["layer"], {})[inner_path(row["path"])] = row["format"] or "kept"
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    columns: dict[str, Kind] = {"layer": "name", **dict.fromkeys(names, "text")}
    rows = [(label(layer), *(found[layer].get(name, "") for name in names)) for layer in in_model_order(found)]
    return Table.of("Formats by layer", columns, rows)


def weights(sections: Sections) -> Table:
    """Every weight with what each format would cost there."""
    forms: Sequence[str] = sections["asked"]["formats"]
    columns: dict[str, Kind] = {
        "weight": "path",
        "format": "name",
        "bits": "figure",
        **dict.fromkeys((f"KL in {form}" for form in forms), "figure"),
    }
    rows = [
        (
            row["path"],
            row["format"] or "kept",
            number(row["bits"]),
            *(number(row["predicted_kl"][form]["value"]) for form in forms),
        )
        for row in sections["weights"]
    ]
    return Table.of("Predicted KL of every format at every weight, nats per token", columns, rows)


def checks(sections: Sections) -> Table:
    """Cells of the map that were run."""
    columns: dict[str, Kind] = {"layer": "name", "format": "name", "predicted": "figure", "measured": "figure"}
    rows = [
        (label(row["layer"]), row["format"], str(Interval.of(row["predicted"])), str(Interval.of(row["measured"])))
        for row in sections["map"]["checks"]
    ]
    return Table.of("Layers in one format, predicted and run", columns, rows)
