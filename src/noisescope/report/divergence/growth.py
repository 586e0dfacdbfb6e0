"""The error through depth: what the plot draws, one picture for each pass of the model.

A site has a place across by the order of its call, grouped by layers, and a height by its relative error. What has no
error is drawn at the bottom edge, what has no figure at the top.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite, log10
from typing import Any, Literal, TypeAlias

from ..escaping import visible
from ..figures import number
from ..layers import inner_path
from ..rows import Sections
from .sites import call, label, measured, place, times, value

__all__ = ["drawn", "marks", "passes"]

Row: TypeAlias = Mapping[str, Any]
State: TypeAlias = Literal["error", "none", "unknown"]
"""how a site is drawn: by its error, at the bottom, or as a cross at the top"""
Key: TypeAlias = tuple[str, str]


def passes(sections: Sections) -> dict[Key, list[Row]]:
    """Stage and phase -> its sites in the order of their calls; prefill forward first."""
    found: dict[Key, list[Row]] = {}
    for site in sections["sites"]:
        found.setdefault((site["stage"], site["phase"]), []).append(site)
    order = sorted(found, key=lambda key: (key[1] != "forward", key[0] != "prefill"))
    return {key: found[key] for key in order}


def drawn(sections: Sections) -> list[dict[str, Any]]:
    """The pictures as the script draws them: positions as numbers, everything that is read written already."""
    fed = {_key(site): site for site in sections["fed"]}
    sources = {row["first"] for row in sections["layers"] if row["role"] == "source"}
    return [
        {
            "title": visible(", ".join(key)),
            "layers": [{**run, "label": visible(run["label"])} for run in _runs(sites)],
            "sites": [_drawn(site, fed.get(_key(site)), name) for site, name in _named(sites)],
            "sources": [at for at, site in enumerate(sites) if site["name"] in sources and not site["same_bits"]],
        }
        for key, sites in passes(sections).items()
    ]


def marks(sections: Sections) -> set[str]:
    """What the legend has to explain."""
    sites, fed = sections["sites"], sections["fed"]
    there = {"fed"} if fed else set()
    there |= {"beyond"} if any(site["beyond"] for site in sites) else set()
    there |= {"within"} if any(_state(site) == "error" and not site["beyond"] for site in sites) else set()
    there |= {"tolerance"} if any(site["tolerance"] for site in sites) else set()
    there |= {"floor"} if any(site["floor"] for site in sites) else set()
    there |= {"source"} if any(row["role"] == "source" for row in sections["layers"]) else set()
    return there | ({"unknown"} if any(_state(site) == "unknown" for site in (*sites, *fed)) else set())


# --- one site ---------------------------------------------------------------------------------------------------


def _drawn(site: Row, fed: Row | None, name: str) -> dict[str, Any]:
    return {
        "name": visible(name),
        "place": visible(place(site)),
        "state": _state(site),
        "log": _log(value(site, "relative_error")),
        "floor": _log(site["floor"]),
        "tolerance": _log(site["tolerance"]),
        "beyond": site["beyond"],
        "own": None if fed is None else {"state": _state(fed), "log": _log(value(fed, "relative_error"))},
        "told": [visible(line) for line in _told(site, fed)],
    }


def _told(site: Row, fed: Row | None) -> Iterator[str]:
    """What is said about a site, line by line."""
    mine, other = site["non_finite"]
    if mine != other:
        yield f"{number(other)} values are not finite, {number(mine)} in the reference"
    if site["same_bits"]:
        yield "bits equal"
    else:
        yield f"relative error {measured(site, 'relative_error')}: {times(site)}"
        yield f"SQNR {measured(site, 'sqnr_db')} dB, MAPE {measured(site, 'mape')} %"
    if site["floor"] is not None:
        yield f"noise floor {number(site['floor'])}, tolerance {number(site['tolerance'])}"
    if fed is not None:
        own = "bits equal" if fed["same_bits"] else f"{measured(fed, 'relative_error')}, {times(fed)}"
        yield f"given the reference's input: {own}"


def _state(site: Row) -> State:
    error = value(site, "relative_error")
    if site["non_finite"][0] != site["non_finite"][1] or error is None or not isfinite(error):
        return "unknown"
    return "error" if error > 0 else "none"


def _log(found: float | None) -> float | None:
    return log10(found) if found is not None and isfinite(found) and found > 0 else None


# --- across -----------------------------------------------------------------------------------------------------


def _runs(sites: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Sites of one layer that follow each other: its label, and the first and last of them."""
    at = 0
    for layer, run in groupby(sites, key=lambda site: site["layer"]):
        count = len(list(run))
        yield {"label": label(layer), "block": isinstance(layer, int), "first": at, "last": at + count - 1}
        at += count


def _named(sites: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Each with a short name, by its operator where its module has several."""
    modules = Counter(site["module"] for site in sites)
    for site in sites:
        inside = inner_path(site["module"])
        alone = modules[site["module"]] == 1 and inside not in ("", "the block")
        yield site, inside.rpartition(".")[2] if alone else call(site)


def _key(site: Row) -> tuple[str, str, str]:
    return site["stage"], site["phase"], site["name"]
