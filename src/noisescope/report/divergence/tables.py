"""The tables of the page: layers, repairs, sites with all their metrics, and what the two traces are."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf, isnan
from typing import Any, TypeAlias

from ..figures import NOTHING, number, share
from ..page.table import Kind, Table
from ..rows import Sections
from .sites import NEAR_ONE, figure, inside, label, measured, percent, place, site_at, size, times, value, worst
from .words import layer_word, sides

__all__ = [
    "METRICS",
    "all_sites",
    "differences",
    "environments",
    "layers",
    "missing",
    "repairs",
    "traces",
    "worst_sites",
]

Row: TypeAlias = Mapping[str, Any]
SHOWN = 10
"""sites in view; all of them are folded"""
METRICS = {
    "relative_error": "relative error",
    "sqnr_db": "SQNR, dB",
    "cosine": "1 − cosine",  # noqa: RUF001 - a minus sign
    "pearson": "1 − Pearson",  # noqa: RUF001 - a minus sign
    "mae": "MAE",
    "mape": "MAPE, %",
    "max_error": "largest error",
    "within_01": "within 0.1 %, %",
    "within_05": "within 0.5 %, %",
}
"""metric -> the heading of its column"""
_CHIPS = {"source": "critical", "clean": "low", "unknown": "moderate", "amplifies": "high", "not judged": "moderate"}
"""word or role of a layer -> its colour"""
_TRACE = {
    "file": "file",
    "model": "model",
    "layers": "layers",
    "data": "data",
    "tokens": "tokens",
    "passes": "passes, rows x tokens",
    "decode": "tokens decoded one by one",
    "checkpoint": "checkpoint",
    "sites": "sites recorded",
}


def layers(sections: Sections) -> list[dict[str, Any]]:
    """Source or amplifier, layer by layer; `chip` is the colour of its word."""
    return [
        {
            "layer": label(row["layer"]),
            "word": layer_word(sections, row),
            "chip": _CHIPS.get(layer_word(sections, row), _CHIPS.get(row["role"], "other")),
            "figures": [number(row["added"]), number(row["inherited"]), number(row["error"]), number(row["gain"])],
            "mape": percent(row["mape"]),
            "first": _first(sections, row),
        }
        for row in sections["layers"]
    ]


def _first(sections: Sections, row: Row) -> str:
    site = site_at(sections, row["first"], row["stage"]) if row["first"] else None
    return inside(site) if site is not None else row["first"] or ""


def repairs(sections: Sections) -> Table:
    """What to fix first."""
    columns: dict[str, Kind] = {
        "layer": "name",
        "operator": "name",
        "share of the risk": "figure",
        "predicted KL, nats per token": "figure",
        "error": "figure",
        "sensitivity, nats per token": "figure",
        "began at": "path",
    }
    rows = [
        (
            label(row["layer"]),
            row["operator"],
            share(row["share"]),
            number(row["risk_kl"]),
            number(row["divergence"]),
            number(row["sensitivity_kl"]),
            row["site"],
        )
        for row in sections["repairs"]
    ]
    return Table.of("Sources, the costliest first: divergence times sensitivity", columns, rows)


def worst_sites(sections: Sections) -> Table:
    """Those furthest beyond what is tolerated."""
    columns: dict[str, Kind] = {
        "site": "path",
        "relative error": "figure",
        "noise floor": "figure",
        "tolerance": "figure",
        "so it is": "text",
    }
    rows = [
        (
            place(site),
            measured(site, "relative_error"),
            number(site["floor"]),
            number(site["tolerance"]),
            times(site),
        )
        for site in worst(sections["sites"])[:SHOWN]
    ]
    return Table.of("The largest first, in units of what is tolerated", columns, rows)


def all_sites(sections: Sections) -> dict[str, Any]:
    """Every site with every metric; `key` is what a column is sorted by."""
    fed = {(site["stage"], site["phase"], site["name"]): site for site in sections["fed"]}
    heads = ["error / tolerance", *METRICS.values(), "noise floor", "tolerance"]
    return {
        "heads": [*heads, "own error"] if fed else heads,
        "rows": [
            {
                "name": site["name"],
                "layer": label(site["layer"]),
                "stage": f"{site['stage']}, {site['phase']}",
                "how": "exact" if site["exact"] else "estimated",
                "beyond": site["beyond"],
                "cells": list(_cells(site, fed.get((site["stage"], site["phase"], site["name"])), fed=bool(fed))),
            }
            for site in sections["sites"]
        ],
    }


def _cells(site: Row, own: Row | None, *, fed: bool) -> Iterator[dict[str, str]]:
    yield {"text": "bits equal" if site["same_bits"] else number(size(site)), "key": _key(size(site))}
    for metric in METRICS:
        yield {"text": measured(site, metric), "key": _key(_sorted_by(site, metric))}
    yield {"text": number(site["floor"]), "key": _key(site["floor"])}
    yield {"text": number(site["tolerance"]), "key": _key(site["tolerance"])}
    if fed:
        error = None if own is None else own["metrics"].get("relative_error")
        text = NOTHING if own is None else figure(error, "relative_error")
        yield {"text": text, "key": _key(None if own is None else value(own, "relative_error"))}


def _sorted_by(site: Row, metric: str) -> float | None:
    found = value(site, metric)
    return None if found is None else 1 - found if metric in NEAR_ONE else found


def _key(found: float | None) -> str:
    """A number that a script reads; nothing for what has no place in an order."""
    if found is None or isnan(found):
        return ""
    return "Infinity" if found == inf else "-Infinity" if found == -inf else repr(float(found))


def missing(sections: Sections) -> list[Table]:
    """Sites that could not be compared."""
    titles = {
        "only_reference": "Only in the reference",
        "only_suspect": "Only in the suspect",
        "unlike": "Of another shape in the suspect",
    }
    found = sections["missing"]
    return [
        Table.of(title, {"site": "path"}, [(name,) for name in found[key]])
        for key, title in titles.items()
        if found[key]
    ]


def differences(sections: Sections) -> Table:
    """Fields of the environments that are not the same."""
    rows = [(row["field"], *sides(row)) for row in sections["differences"]]
    return Table.of("What is not the same", {"what": "name", "reference": "text", "suspect": "text"}, rows)


def traces(sections: Sections) -> Table:
    """What was recorded, and how small it is."""
    mine, other = sections["traces"]["reference"], sections["traces"]["suspect"]
    rows = [
        (title, *sides({"reference": _plain(mine[name]), "suspect": _plain(other[name])}))
        for name, title in _TRACE.items()
    ]
    sizes = {
        "sketches and samples": lambda trace: _bytes(trace["bytes_kept"]),
        "all values would take": lambda trace: _bytes(trace["bytes_of_all_values"]),
        "so it keeps": _share_kept,
    }
    rows += [(title, told(mine), told(other)) for title, told in sizes.items()]
    return Table.of("What was recorded", {"what": "text", "reference": "text", "suspect": "text"}, rows)


def environments(sections: Sections) -> Table:
    """Where the two were made."""
    mine, other = (sections["traces"][side]["environment"] for side in ("reference", "suspect"))
    rows = [
        (name, *sides({"reference": mine.get(name), "suspect": other.get(name)}))
        for name in dict.fromkeys((*mine, *other))
    ]
    return Table.of("Where they were made", {"what": "name", "reference": "text", "suspect": "text"}, rows)


def _plain(found: Any) -> Any:
    if isinstance(found, (list, tuple)):
        return ", ".join(" x ".join(map(str, _listed(shape))) for shape in found)
    return number(found) if isinstance(found, int) else found


def _listed(shape: Any) -> Iterable[Any]:
    return shape if isinstance(shape, (list, tuple)) else (shape,)


def _bytes(count: float | None) -> str:
    if count is None:
        return NOTHING
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{number(count / least)} {unit}"
    return f"{number(count)} bytes"


def _share_kept(trace: Row) -> str:
    kept, whole = trace["bytes_kept"], trace["bytes_of_all_values"]
    return f"{share(kept / whole)} of all values" if kept is not None and whole else NOTHING
