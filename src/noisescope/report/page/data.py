"""What the scripts of a page draw: positions as numbers, everything that is read as text, written already.

Nothing is computed in the browser, so that what a plot shows on hovering is what the tables and the JSON say.
"""

from collections.abc import Iterator, Mapping
from math import log10
from typing import Any

from ..escaping import visible
from ..figures import figure, number, number_or_none, share
from ..layers import inner_path, label, layer_of_module, layer_of_site, map_layers, site_parts
from .findings import CELL_COLUMNS, OUTLIER_COLUMNS, avalanche_names, cell_row, outliers
from .table import Kind, Table

__all__ = ["page_data"]

Sections = Mapping[str, Any]


def page_data(sections: Sections) -> dict[str, Any]:
    """One entry a plot, and the panels of the layers."""
    return {
        "map": _map(sections),
        "panels": _panels(sections),
        "operators": _dots(sections.get("operator_analysis", {})),
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
        "kl": figure(cell["kl"]),
        "how": visible(cell["how"]),
        "predicted": figure(cell.get("predicted")),
        "measured": figure(cell["measured"]) if cell.get("measured") else None,
        "disagrees": bool(cell.get("disagrees")),
    }


# --- the panel of a layer ---------------------------------------------------------------------------------------


def _panels(sections: Sections) -> list[dict[str, Any]]:
    """One panel a column of the map."""
    cells = sections["map"].get("cells", ())
    outer = _outer_operators(sections)
    return [
        {
            "title": visible(label(layer)),
            "facts": _layer_facts(sections, layer),
            "tables": [table.as_json() for table in _layer_tables(sections, layer, cells, outer) if table.rows],
        }
        for layer in map_layers(sections)
    ]


def _layer_tables(sections: Sections, layer: int | str, cells: Any, outer: Mapping[str, int | str]) -> Iterator[Table]:
    mine = sorted((cell for cell in cells if cell["layer"] == layer), key=lambda cell: -cell["kl"]["value"])
    yield Table.of("Its operators", CELL_COLUMNS, [cell_row(cell) for cell in mine])
    modules = sections.get("channel_analysis", {}).get("per_layer", {})
    yield _module_table({path: row for path, row in modules.items() if layer_of_module(path) == layer})
    sites = sections["map"].get("channels") or {}
    yield _site_table({name: row for name, row in sites.items() if layer_of_site(name, outer) == layer})


def _module_table(modules: Mapping[str, Any]) -> Table:
    """Each module with its outlier channels; one that has none says so."""
    rows: list[tuple[str, ...]] = []
    for path, module in modules.items():
        found = sorted(outliers(module), key=lambda outlier: -outlier[1])
        rows += [(inner_path(path), str(channel), f"{number(ratio)}x", *words) for channel, ratio, *words in found]
        if not found:
            rows.append((inner_path(path), f"no outliers; largest ratio {number(module.get('max_ratio'))}x"))
    return Table.of("Outlier channels of its modules", OUTLIER_COLUMNS, rows)


def _site_table(sites: Mapping[str, Any]) -> Table:
    columns: dict[str, Kind] = {"module": "name", "operator": "name", "channels, with their share": "run"}
    rows = []
    for site, row in sites.items():
        pairs = zip(row["channels"], row["shares"], strict=False)
        module, operator = site_parts(site)
        rows.append((inner_path(module), operator, ", ".join(f"{channel} ({share(part)})" for channel, part in pairs)))
    return Table.of("Channels in which most of its sensitivity lies", columns, rows)


def _layer_facts(sections: Sections, layer: int | str) -> list[tuple[str, str]]:
    metrics, facts = sections.get("metrics", {}), []
    row = metrics.get("layers", {}).get(str(layer))
    if row and "failed" in row:
        facts.append(("all of it", f"failed: {row['failed']}"))
    elif row:
        how = "from the map" if row.get("how") == "map" else str(row.get("how", ""))
        facts.append(("KL of all of it", f"{figure(row['kl'])} nats per token, {how}"))
    name = label(layer)
    if threshold := metrics.get("critical_thresholds", {}).get(name):
        value = threshold["critical_threshold"]
        known = f"{number(value)}, {threshold['how']}" if value is not None else f"none found, {threshold['how']}"
        facts.append(("critical noise scale", known))
    for window, found in sections.get("layer_analysis", {}).items():
        inside = isinstance(layer, int) and found["start_layer"] <= layer <= found["end_layer"]
        if inside and window in avalanche_names(sections):
            facts.append(("avalanche point", window))
    return [(name, visible(value)) for name, value in facts]


def _outer_operators(sections: Sections) -> dict[str, int | str]:
    return {
        cell["operator"]: cell["layer"] for cell in sections["map"].get("cells", ()) if isinstance(cell["layer"], str)
    }


# --- operators, windows, agreement ------------------------------------------------------------------------------


def _dots(rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Accuracy lost (in percent) and KL, each with its interval; rows that failed have nothing to draw."""
    return [{"name": visible(name), **_measured(row)} for name, row in rows.items() if "failed" not in row]


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    known = row["severity"] != "inconclusive"
    lost = [row["degradation"], *row["degradation_interval"]] if known else [None] * 3
    return {
        "lost": [None if value is None else number_or_none(100 * value) for value in lost],
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
            "middle": number_or_none((row["start_layer"] + row["end_layer"]) / 2),
            "avalanche": name in avalanches,
            "amplification": _ends(row.get("amplification")),
            "amplification_text": figure(row.get("amplification")),
            **_measured(row),
        }
        for name, row in sections.get("layer_analysis", {}).items()
        if "failed" not in row
    ]


def _groups(sections: Sections) -> list[dict[str, Any]]:
    """Early, middle and late layers, where each begins and ends."""
    return [
        {"name": visible(name), "ends": [number_or_none(row["start_layer"]), number_or_none(row["end_layer"])]}
        for name, row in sections.get("metrics", {}).get("groups", {}).items()
    ]


def _pairs(sections: Sections) -> list[dict[str, Any]]:
    """Predicted and measured KL of every cell that was checked."""
    return [
        {
            "name": visible(f"{label(cell['layer'])} {cell['operator']}"),
            "predicted": _ends(cell["predicted"]),
            "measured": _ends(cell["measured"]),
            "told": [f"predicted {figure(cell['predicted'])}", f"measured {figure(cell['measured'])}"],
            "disagrees": bool(cell.get("disagrees")),
        }
        for cell in sections["map"].get("cells", ())
        if cell.get("measured")
    ]


def _ends(found: Mapping[str, Any] | None) -> list[float | None]:
    """Value, low and high, as far as they can be drawn."""
    return [number_or_none((found or {}).get(key)) for key in ("value", "low", "high")]
