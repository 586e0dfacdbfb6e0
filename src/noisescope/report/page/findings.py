"""The findings as tables: cells of the map, operators, windows of layers, critical thresholds, channels."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..figures import NOTHING, Interval, figure, number, number_or_none, share
from ..layers import label, map_layers
from ..rows import LARGEST_SCALE, Sections, channel_statistics
from .table import Kind, Table

__all__ = [
    "CELL_COLUMNS",
    "OUTLIER_COLUMNS",
    "avalanche_names",
    "cell_row",
    "cells",
    "channels",
    "critical_scale",
    "groups",
    "layers",
    "operators",
    "outliers",
    "thresholds",
    "together",
    "windows",
]


_MEASURED: Final[dict[str, Kind]] = {
    "accuracy lost": "figure",
    "KL, nats per token": "figure",
    "predictions changed": "figure",
    "perplexity": "figure",
    "sensitivity score": "figure",
}

CELL_COLUMNS: Final[dict[str, Kind]] = {
    "operator": "name",
    "KL, nats per token": "figure",
    "how": "run",
    "predicted": "figure",
    "measured": "figure",
    "remark": "text",
}
OUTLIER_COLUMNS: Final[dict[str, Kind]] = {
    "module": "path",
    "channel": "figure",
    "ratio to median": "figure",
    "severity": "word",
    "kind": "run",
    "seen in": "run",
}


def cells(sections: Sections) -> Table:
    """One row a cell of the map, in the order of the layers."""
    order = {layer: at for at, layer in enumerate(map_layers(sections))}
    found = sorted(sections["map"].get("cells", ()), key=lambda cell: order[cell["layer"]])
    columns: dict[str, Kind] = {"layer": "name", **CELL_COLUMNS}
    return Table.of("Every cell of the map", columns, [(label(cell["layer"]), *cell_row(cell)) for cell in found])


def cell_row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """A cell under `CELL_COLUMNS`."""
    remark = "prediction and measurement disagree" if cell["disagrees"] else ""
    figures = figure(cell["predicted"]), figure(cell["measured"])
    return cell["operator"], figure(cell["kl"]), cell["how"], *figures, remark


def operators(sections: Sections) -> Table:
    """One row an operator, the worst first."""
    rows = sections["operator_analysis"]
    caption = "Noise at one operator in all layers"
    return Table.of(caption, _heads("operator"), [_row(name, row) for name, row in rows.items()])


def together(sections: Sections) -> Table:
    """All operators at once, and the core ones."""
    rows = sections["metrics"].get("together", {})
    return Table.of("Several operators at once", _heads("operators"), [_row(name, row) for name, row in rows.items()])


def groups(sections: Sections) -> Table:
    """Early, middle and late layers."""
    rows = sections["metrics"].get("groups", {})
    named = [(f"{name}, L{row['start_layer']}-{row['end_layer']}", row) for name, row in rows.items()]
    return Table.of("Noise at a third of the layers", _heads("layers"), [_row(name, row) for name, row in named])


def windows(sections: Sections) -> Table:
    """One row a window, in the order of the layers."""
    avalanches = avalanche_names(sections)
    columns: dict[str, Kind] = {
        "window": "name",
        "accuracy lost": "figure",
        "KL, nats per token": "figure",
        "amplification": "figure",
        "severity": "word",
        "remark": "text",
    }
    rows = [_window(name, row, name in avalanches) for name, row in sections["layer_analysis"].items()]
    return Table.of("Noise at all operators of neighbouring layers", columns, rows)


def layers(sections: Sections) -> Table:
    """One row a layer: what the map, or an injection, says of it, and its outliers."""
    cross = (sections["cross_level"]).get("rows")
    found = {str(row.get("layer")): row for row in cross if isinstance(row, Mapping)} if isinstance(cross, list) else {}
    columns: dict[str, Kind] = {
        "layer": "name",
        "KL, nats per token": "figure",
        "how": "run",
        "accuracy lost, mean of its windows": "figure",
        "outlier channels": "figure",
    }
    rows: list[tuple[str, ...]] = []
    for name, row in sections["metrics"].get("layers", {}).items():
        if not row or "failed" in row:
            rows.append((f"L{name}", row["failed"] if row else "not in the map"))
            continue
        more = found.get(name, {})
        kl, lost = figure(row["kl"]), share(more.get("degradation"))
        rows.append((f"L{name}", kl, row["how"], lost, number(more.get("total_outliers"))))
    return Table.of("Each layer alone", columns, rows)


def thresholds(sections: Sections) -> Table:
    """One row a place, the most fragile first; those of which nothing is known last."""
    found = sections["metrics"].get("critical_thresholds", {})
    columns: dict[str, Kind] = {
        "place": "name",
        "critical noise scale": "figure",
        "how": "run",
        "predicted": "figure",
        "searched, lies in": "figure",
        "risk": "word",
    }
    ranked = sorted(found.items(), key=lambda item: _threshold_rank(item[1]))
    return Table.of("The smallest noise that costs too much", columns, [_threshold(*item) for item in ranked])


def channels(sections: Sections) -> Table:
    """One row an outlier channel, the largest ratio first."""
    modules = channel_statistics(sections).items()
    found = [(path, *outlier) for path, module in modules for outlier in outliers(module)]
    found.sort(key=lambda row: -row[2])
    rows = [(path, str(channel), f"{number(ratio)}x", *words) for path, channel, ratio, *words in found]
    return Table.of("Outlier channels, the largest first", OUTLIER_COLUMNS, rows)


def outliers(module: Mapping[str, Any]) -> Iterator[tuple[int, float, str, str, str]]:
    """Channel, ratio, severity, kind and persistence of each outlier of a module."""
    details = (module[key] for key in ("outlier_indices", "outlier_ratios", "severities", "kinds", "persistence"))
    for channel, ratio, severity, kind, seen in zip(*details, strict=True):
        yield channel, ratio, severity, kind or NOTHING, _often(seen, module["samples"])


def critical_scale(row: Mapping[str, Any]) -> str:
    """The smallest noise that costs too much, or that it is larger than any tried, or unknown."""
    return "unknown" if row["how"] == "unknown" else _scale(row["critical_threshold"])


def avalanche_names(sections: Sections) -> set[str]:
    """The windows that are avalanche points."""
    return {point["layer_range"] for point in sections["executive_summary"]["avalanche_points"]}


def _heads(first: str) -> dict[str, Kind]:
    return {first: "name", **_MEASURED, "severity": "word"}


def _row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    if "failed" in row:
        return name, f"failed: {row['failed']}"
    return (
        name,
        share(row["degradation"], row["degradation_interval"]),
        figure(row["kl"]),
        Interval.of(row["flip_rate"]).percent,
        figure(row["perplexity"]),
        number(row["sensitivity_score"]),
        row["severity"],
    )


def _window(name: str, row: Mapping[str, Any], avalanche: bool) -> tuple[str, ...]:
    if "failed" in row:
        return name, f"failed: {row['failed']}"
    lost = share(row["degradation"], row["degradation_interval"])
    remark = "avalanche point" if avalanche else ""
    return name, lost, figure(row["kl"]), figure(row.get("amplification")), row["severity"], remark


def _threshold(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    predicted = row["predicted_interval"]
    between = row["measured_between"]
    foretold = NOTHING
    if predicted:
        foretold = f"{_scale(row['predicted'])} [{_scale(predicted[0])}, {_scale(predicted[1])}]"
    found = f"{_scale(between[0])} to {_scale(between[1])}" if between else NOTHING
    return name, critical_scale(row), row["how"], foretold, found, row["risk"]


def _scale(value: Any) -> str:
    known = number_or_none(value)
    return f"> {LARGEST_SCALE:g}" if known is None or known > LARGEST_SCALE else f"{known:.3g}"


def _threshold_rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    value = number_or_none(row["critical_threshold"])
    return row["how"] == "unknown", float("inf") if value is None else value


def _often(seen: float | None, samples: float | None) -> str:
    share_of, known = number_or_none(seen), number_or_none(samples)
    if share_of is None:
        return NOTHING
    return f"{round(share_of * known)} of {number(samples)} samples" if known else share(share_of)
