"""What the scripts of a page draw: positions as numbers, everything that is read as text, written already.

Nothing is computed in the browser, so that what a plot shows on hovering is what the tables and the JSON say.
"""

from collections.abc import Mapping
from math import log10
from typing import Any, Final

from ..escaping import visible
from ..figures import figure, number_or_none, share
from ..layers import label, map_layers
from ..rows import Sections
from .findings import avalanche_names

__all__ = ["page_data"]


_NOTHING: Final = (None, None, None)
"""no value, no interval"""


def page_data(sections: Sections) -> dict[str, Any]:
    """One entry a plot."""
    return {
        "map": _map(sections),
        "operators": _dots(sections["operator_analysis"]),
        "windows": _windows(sections),
        "groups": _groups(sections),
        "agreement": _pairs(sections),
    }


# --- the map ----------------------------------------------------------------------------------------------------


def _map(sections: Sections) -> dict[str, Any]:
    layers, cells = map_layers(sections), sections["map"].get("cells", ())
    blocks_first = sorted(cells, key=lambda cell: isinstance(cell["layer"], str))
    operators = list(dict.fromkeys(cell["operator"] for cell in blocks_first))
    return {
        "layers": [visible(label(layer)) for layer in layers],
        "operators": [visible(name) for name in operators],
        "cells": [
            {"column": layers.index(cell["layer"]), "row": operators.index(cell["operator"]), **_cell(cell)}
            for cell in cells
        ],
    }


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    value = number_or_none(cell["kl"]["value"])
    return {
        "log_kl": log10(value) if value is not None and value > 0 else None,
        "finite": value is not None,
        "kl": figure(cell["kl"]),
        "how": visible(cell["how"]),
        "predicted": figure(cell["predicted"]),
        "measured": figure(cell["measured"]) if cell["measured"] else None,
        "disagrees": cell["disagrees"],
    }


# --- operators, windows, agreement ------------------------------------------------------------------------------


def _dots(rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Accuracy lost (in percent) and KL, each with its interval; of a row that failed, why."""
    return [{"name": visible(name), **_drawn(row)} for name, row in rows.items()]


def _drawn(row: Mapping[str, Any]) -> dict[str, Any]:
    if "failed" in row:
        return {"failed": visible(f"failed: {row['failed']}"), "lost": _NOTHING, "kl": _NOTHING}
    known = row["severity"] != "inconclusive"
    lost = [number_or_none(100 * value) for value in (row["degradation"], *row["degradation_interval"])]
    return {
        "failed": "",
        "lost": lost if known else _NOTHING,
        "lost_text": share(row["degradation"], row["degradation_interval"]),
        "kl": _ends(row["kl"]),
        "kl_text": figure(row["kl"]),
        "severity": visible(row["severity"]),
    }


def _windows(sections: Sections) -> list[dict[str, Any]]:
    avalanches = avalanche_names(sections)
    return [
        {
            "name": visible(name),
            "ends": _layers(row),
            "middle": number_or_none((row["start_layer"] + row["end_layer"]) / 2),
            "avalanche": name in avalanches,
            "amplification": _ends(row.get("amplification")),
            "amplification_text": figure(row.get("amplification")),
            **_drawn(row),
        }
        for name, row in sections["layer_analysis"].items()
    ]


def _groups(sections: Sections) -> list[dict[str, Any]]:
    """Early, middle and late layers, where each begins and ends."""
    return [
        {"name": visible(name), "ends": _layers(row)} for name, row in sections["metrics"].get("groups", {}).items()
    ]


def _pairs(sections: Sections) -> list[dict[str, Any]]:
    """Predicted and measured KL of every cell that was checked."""
    return [
        {
            "name": visible(f"{label(cell['layer'])} {cell['operator']}"),
            "predicted": _ends(cell["predicted"]),
            "measured": _ends(cell["measured"]),
            "told": [f"predicted {figure(cell['predicted'])}", f"measured {figure(cell['measured'])}"],
            "disagrees": cell["disagrees"],
        }
        for cell in sections["map"].get("cells", ())
        if cell["measured"]
    ]


def _layers(row: Mapping[str, Any]) -> list[float | None]:
    """The first and the last."""
    return [number_or_none(row[key]) for key in ("start_layer", "end_layer")]


def _ends(found: Mapping[str, Any] | None) -> list[float | None]:
    """Value, low and high, as far as they can be drawn."""
    return [number_or_none((found or {}).get(key)) for key in ("value", "low", "high")]
