"""Reports as they also occur, made from a real one: of one level, failed, inconclusive, damaged, of version 1."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from math import inf, nan
from pathlib import Path
from typing import Any

from noisescope.errors import InputError
from noisescope.report import Report
from noisescope.report.schema import upgraded
from noisescope.store.encoding import encode

READING = {
    "formula": "(clean - noisy) / clean",
    "unit": "share",
    "bands": ["< 5% LOW", "5-10% MODERATE", "> 20% CRITICAL"],
    "source": "the method's documents",
    "note": "",
}


def failed_row(why: str, **more: Any) -> dict[str, Any]:
    """A row that could not be measured."""
    return {"failed": why or "no reason", "total_injections": 3, **more}


def module_row(*ratios: float, kind: str = "persistent", severity: str = "HIGH") -> dict[str, Any]:
    """The channels of a module, with outliers of these ratios."""
    count = len(ratios)
    return {
        "outlier_indices": list(range(count)),
        "num_outliers": count,
        "total_channels": 64,
        "outlier_percentage": count / 64,
        "outlier_ratios": list(ratios),
        "max_ratio": max(ratios, default=1.0),
        "severities": [severity] * count,
        "kinds": [kind] * count,
        "persistence": [1.0] * count,
        "samples": 8,
        "non_finite": 0,
    }


def figure(value: float, low: float = nan, high: float = nan) -> dict[str, float]:
    """A figure of a report."""
    return {"value": value, "low": low, "high": high, "stderr": nan, "n": 8}


def with_version_2(sections: dict[str, Any]) -> dict[str, Any]:
    """The same with the later keys, where this diagnosis does not write them yet."""
    found = deepcopy(sections)
    found.setdefault("readings", {"relative degradation": READING})
    found["coverage"].setdefault("observer", {"bit_identical": True, "steps_difference": 7e-7})
    for row in found["recommendations"]:
        row.setdefault("command", f"noisescope diagnose --operators {row['component']}")
    found.setdefault("next_steps", [{"command": "noisescope plan precision out --avg-bits 6", "why": "a plan"}])
    return found


def variants(whole: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Reports as they also occur: of one level, with failed rows, inconclusive, not finite, of the first version."""
    found = {name: deepcopy(whole) for name in ("whole", "operator", "layer", "channel", "failed", "odd", "first")}
    for level, others in {
        "operator": ("layer_analysis", "channel_analysis"),
        "layer": ("operator_analysis", "channel_analysis"),
        "channel": ("operator_analysis", "layer_analysis", "map", "metrics"),
    }.items():
        found[level] |= {name: {} for name in (*others, "cross_level")}
        found[level]["recommendations"] = []
    broken = found["failed"]
    for part in (broken["operator_analysis"], broken["layer_analysis"], broken["metrics"]["groups"]):
        for name in list(part)[::2]:
            ends = {key: part[name][key] for key in ("start_layer", "end_layer") if key in part[name]}
            part[name] = failed_row("not finite at model.layers.1", **ends)
    _spoil(found["odd"])
    for key in ("readings", "next_steps"):
        found["first"][key] = type(found["first"][key])()
    found["first"]["coverage"]["observer"] = {}
    return {name: upgraded(sections, name) for name, sections in found.items()}


def _spoil(sections: dict[str, Any]) -> None:
    """Nothing is known: figures are not finite, accuracy is inconclusive."""
    for at, row in enumerate([*sections["operator_analysis"].values(), *sections["layer_analysis"].values()]):
        row["severity"] = "inconclusive"
        row["degradation"], row["degradation_interval"] = nan, [nan, inf]
        row["kl"] = figure((inf, nan, 0.0)[at % 3], 0.0, inf)
        row["amplification"] = None
    for at, cell in enumerate(sections["map"]["cells"]):
        cell["kl"] = figure((nan, inf, 0.0)[at % 3], nan, inf)
    sections["metrics"]["clean"]["conclusive"] = False
    modules = sections["channel_analysis"]["per_layer"]
    modules |= {name: module_row(inf, nan, 12.0) for name in modules}


def damaged(sections: dict[str, Any], home: Path, draw: random.Random, count: int) -> Iterator[Report]:
    """Reports with a part taken away or replaced at random, of which those that load."""
    text = encode(sections)
    ways = list(_places(json.loads(text)))
    for way in draw.sample(ways, count):
        report = json.loads(text)
        at = report
        for part in way[:-1]:
            at = at[part]
        other = draw.choice([None, "odd", 7, -1.5, [], {}, {"a": 1}, [None], True, {"non_finite": "NaN"}, "gone"])
        if other == "gone" and isinstance(at, dict):
            del at[way[-1]]
        else:
            at[way[-1]] = other
        (home / "report.json").write_text(json.dumps(report))
        try:
            yield Report.load(home)
        except InputError as error:
            if "\n" in str(error):
                raise AssertionError("more than one line") from error


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*way, key)
        yield from _places(part, (*way, key))
