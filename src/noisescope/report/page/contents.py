"""What the template is given: the verdict, then the sections that this report has something for."""

from collections.abc import Mapping
from typing import Any

from ...measure.readings import READINGS
from ..figures import number, number_or_none, plural
from ..layers import label, map_layers
from ..rows import Sections, layer_scale
from ..sentences import verdict
from . import findings, trust
from .panels import panels
from .table import Table

__all__ = ["contents"]


SHOWN_CHANNELS, MOST_CHANNELS = 12, 200
SHOWN_THRESHOLDS = 10


def contents(sections: Sections) -> dict[str, Any]:
    """Everything that is on the page, as text, figures and tables."""
    found: dict[str, Any] = {
        "title": str(sections["config"].get("model", "")),
        "verdict": verdict(sections),
        "risk": str(sections["executive_summary"]["overall_risk_level"]),
        "gauge": gauge(sections["executive_summary"]["risk_score"]),
        "facts": trust.summary_facts(sections),
        "map": _map(sections),
        "windows": _windows(sections),
        "thresholds": _thresholds(sections),
        "operators": _operators(sections),
        "channels": _channels(sections),
        "recommendations": _recommendations(sections),
        "agreement": _agreement(sections),
        "coverage": {"table": trust.coverage(sections), "observer": trust.observer(sections)},
        "costs": trust.costs(sections),
        "cost": number(sections["cost"]["forward_pass_equivalents"]),
        "environment": trust.environment(sections),
        "configuration": trust.configuration(sections),
        "readings": trust.readings(sections),
        "next_steps": sections["next_steps"],
        "version": str(sections["environment"].get("noisescope", "")),
    }
    return found | {"toc": [(name, title) for name, title in _TITLES.items() if _has(found, name)]}


_TITLES = {
    "map": "Map",
    "windows": "Windows of layers",
    "thresholds": "Critical noise",
    "operators": "Operators",
    "channels": "Channels",
    "recommendations": "What to do",
    "agreement": "Agreement",
    "coverage": "Coverage",
    "costs": "Cost",
    "environment": "Environment",
    "configuration": "Configuration",
    "readings": "How to read it",
    "next_steps": "Next steps",
}


def _has(found: Mapping[str, Any], name: str) -> bool:
    part = found[name]
    return bool(part.rows) if isinstance(part, Table) else bool(part)


def gauge(score: float) -> dict[str, Any]:
    """The risk score on a scale, with the edges at which its reading changes."""
    bands = READINGS["risk score"].bands
    edges = sorted(band.low for band in bands if band.low > 0)
    end = edges[-1] * 1.5
    known = number_or_none(score)
    at = end if known is None else min(max(known, 0.0), end)
    words = [band.word for band in reversed(bands)]
    starts = [0.0, *edges]
    return {
        "score": number(score if known is None else round(known)),
        "at": round(100 * at / end, 2),
        "bands": [
            {"word": word, "from": number(round(low)), "at": round(100 * low / end, 2)}
            for word, low in zip(words, starts, strict=True)
        ],
    }


def _map(sections: Sections) -> dict[str, Any]:
    """What is said around the map, and the map as a table for those who run no scripts."""
    cells = sections["map"].get("cells", ())
    if not cells:
        note = sections["map"].get("note", "")
        return {"note": note} if note else {}
    passes = sections["map"].get("passes", 0)
    checked = sum(1 for cell in cells if cell["measured"])
    return {
        "table": findings.cells(sections),
        "layers": [label(layer) for layer in map_layers(sections)],
        "panels": panels(sections),
        "all_finite": all(number_or_none(cell["kl"]["value"]) is not None for cell in cells),
        "note": "",
        "made": f"{plural(len(cells), 'cell')} from {plural(passes, 'backward pass', 'backward passes')}, "
        f"{checked} of them checked by injection",
        "scale": sections["map"].get("noise_scale", sections["config"]["noise_scale"]),
    }


def _windows(sections: Sections) -> dict[str, Any]:
    table = findings.windows(sections)
    if not table.rows:
        return {}
    points = sections["executive_summary"]["avalanche_points"]
    return {
        "table": table,
        "groups": findings.groups(sections),
        "layers": findings.layers(sections),
        "avalanches": [point["layer_range"] for point in points],
        "missing": _any_missing(sections["layer_analysis"]),
        "scale": layer_scale(sections),
        "scale_elsewhere": sections["config"]["noise_scale"],
        "threshold": _setting(sections, "avalanche_threshold", percent=True),
    }


def _thresholds(sections: Sections) -> dict[str, Any]:
    table = findings.thresholds(sections)
    if not table.rows:
        return {}
    shown, rest = table.split(SHOWN_THRESHOLDS)
    return {"table": shown, "rest": rest, "target": _setting(sections, "target_degradation", percent=True)}


def _operators(sections: Sections) -> dict[str, Any]:
    table = findings.operators(sections)
    if not table.rows:
        return {}
    order = sections["metrics"].get("order") or {}
    return {
        "table": table,
        "together": findings.together(sections),
        "order": order,
        "missing": _any_missing(sections["operator_analysis"]),
    }


def _any_missing(rows: Mapping[str, Any]) -> bool:
    """Whether there is a row without a figure to draw."""
    return any("failed" in row or number_or_none(row["kl"]["value"]) is None for row in rows.values())


def _channels(sections: Sections) -> dict[str, Any]:
    found = sections["channel_analysis"]
    if not found:
        return {}
    table = findings.channels(sections)
    shown, rest = table.split(SHOWN_CHANNELS)
    rest, left_out = rest.split(MOST_CHANNELS)
    modules = found["per_layer"]
    return {
        "table": shown,
        "rest": rest,
        "left_out": len(left_out.rows),
        "total": plural(len(table.rows), "outlier channel"),
        "modules": plural(len(modules), "module"),
        "threshold": _setting(sections, "outlier_threshold"),
        "non_finite": sum(bad for module in modules.values() if (bad := module.get("non_finite", 0))),
    }


def _recommendations(sections: Sections) -> list[dict[str, Any]]:
    """What to do, the most urgent first; a command that several have in common is offered once."""
    found, offered = [], set()
    for item in sections["recommendations"]:
        found.append({**item, "command": "" if item["command"] in offered else item["command"]})
        offered.add(item["command"])
    return found


def _setting(sections: Sections, key: str, *, percent: bool = False) -> str:
    """A number that was asked for, in the digits it was asked for in."""
    value = number_or_none(sections["config"].get(key))
    if value is None:
        return "the threshold"
    return f"{100 * value:g}%" if percent else f"{value:g}"


def _agreement(sections: Sections) -> dict[str, Any]:
    facts, table = trust.agreement(sections), trust.proxies(sections)
    pairs = any(cell["measured"] for cell in sections["map"].get("cells", ()))
    return {"facts": facts, "table": table, "plotted": pairs} if facts or table.rows else {}
