"""How far the figures can be believed, and where they come from: agreement, coverage, cost, environment, readings."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..figures import NOTHING, figure, number, number_or_none, plural, share
from .table import Kind, Table

__all__ = [
    "agreement",
    "configuration",
    "costs",
    "coverage",
    "environment",
    "layer_scale",
    "observer",
    "proxies",
    "readings",
    "summary_facts",
]

Sections = Mapping[str, Any]
Facts = list[tuple[str, str]]
"""pairs of what and how much"""


def agreement(sections: Sections) -> Facts:
    """How the map did where it was checked by injection."""
    found = sections["map"].get("agreement") or {}
    facts = []
    if found:
        facts.append(("cells checked by injection", f"{found['checked']} of {len(sections['map']['cells'])}"))
    if rank := found.get("spearman"):
        facts.append(("rank correlation (Spearman) of predicted and measured", figure(rank)))
        facts.append(("predicted / measured, median", number(found["ratio_median"])))
        if quartiles := found.get("ratio_quartiles"):
            facts.append(("its quartiles", f"{number(quartiles[0])} to {number(quartiles[1])}"))
    elif found:
        facts.append(("rank correlation", "too few checked cells to say"))
    for operator, factor in (sections["map"].get("corrections") or {}).items():
        facts.append((f"unchecked cells of {operator} moved by", f"x {number(factor)}"))
    for name, why in (sections.get("metrics", {}).get("failed") or {}).items():
        facts.append((f"FAILED: {name}", why))
    return facts


def proxies(sections: Sections) -> Table:
    """Cheap stand-ins for sensitivity: what one expects of them, and what this model shows."""
    columns: dict[str, Kind] = {
        "proxy": "name",
        "expected": "text",
        "found (Spearman)": "figure",
        "Kendall": "figure",
        "as expected": "text",
        "verdict": "text",
    }
    rows = []
    panel = sections.get("metrics", {}).get("agreement") or {}
    for row in panel.get("proxies", ()):
        holds = "yes" if row.get("holds") is True else "no" if row.get("holds") is False else NOTHING
        verdict = row["verdict"] + (f": {row['reason']}" if row.get("reason") else "")
        figures = figure(row["spearman"]), figure(row["kendall"])
        rows.append((row["name"], row.get("expected") or NOTHING, *figures, holds, verdict))
    cross = sections.get("cross_level") or {}
    if "outliers_vs_sensitivity" in cross:
        r = f"r = {number(cross['outliers_vs_sensitivity'])}"
        rows.append(("outliers of a layer", cross.get("expected", NOTHING), r, NOTHING, NOTHING, "Pearson, not ranks"))
    return Table.of("Do the usual proxies foretell how sensitive a layer is?", columns, rows)


def coverage(sections: Sections) -> Table:
    """How many sites of each operator there were, and which needed attention in steps."""
    found = sections["coverage"]
    steps, hidden = found.get("in_steps", {}), found.get("hidden", {})
    rows: list[tuple[str, ...]] = [
        (name, number(count), number(steps.get(name, 0)), "reached") for name, count in found.get("sites", {}).items()
    ]
    rows += [(name, f"{plural(count, 'site')} hidden inside a fused kernel") for name, count in hidden.items()]
    columns: dict[str, Kind] = {
        "operator": "name",
        "sites": "figure",
        "of them in steps": "figure",
        "state": "text",
    }
    return Table.of("What noise could reach", columns, rows)


def observer(sections: Sections) -> Facts:
    """What measuring itself changed."""
    found = sections["coverage"].get("observer") or {}
    difference = found.get("steps_difference", sections.get("metrics", {}).get("attention_steps_difference"))
    facts = []
    if "bit_identical" in found:
        facts.append(("instrumented run is bit-identical to the bare model", "yes" if found["bit_identical"] else "no"))
    if difference is not None:
        facts.append(("largest difference from computing fused attention in steps", number(difference)))
    return facts


def costs(sections: Sections) -> Table:
    """Stage, forward passes, and its share of all in percent."""
    total = number_or_none(sections["cost"]["forward_pass_equivalents"])
    columns: dict[str, Kind] = {"stage": "run", "forward passes": "figure", "share": "percent"}
    rows = []
    for name, cost in sections["cost"]["by_stage"].items():
        part = 100 * (number_or_none(cost) or 0.0) / total if total else 0.0
        rows.append((name, number(cost), f"{min(max(part, 0.0), 100.0):.1f}"))
    return Table.of("Forward passes by stage", columns, rows)


def environment(sections: Sections) -> Facts:
    """What the figures may depend on."""
    found = sections["environment"]
    return [(name, number(value) if name == "parameters" else _plain(value)) for name, value in found.items()]


def configuration(sections: Sections) -> Facts:
    """What was asked for, nested keys with dots."""
    return [(name, _plain(value)) for name, value in _flat(sections["config"])]


def readings(sections: Sections) -> Table:
    """Every metric: its formula, the words for its values, and where those thresholds come from."""
    columns: dict[str, Kind] = {
        "metric": "text",
        "formula": "text",
        "reads": "lines",
        "thresholds come from": "text",
        "note": "text",
    }
    rows = []
    for name, row in (sections.get("readings") or {}).items():
        unit = f" ({row['unit']})" if row.get("unit") else ""
        bands = ", ".join(row.get("bands", ())) or NOTHING
        rows.append((name + unit, row.get("formula", ""), bands, row.get("source") or NOTHING, row.get("note", "")))
    return Table.of("What a figure is called, and why", columns, rows)


def summary_facts(sections: Sections) -> Facts:
    """The strip below the verdict: the model, the data, the noise, the price."""
    config, env, data = sections["config"], sections["environment"], sections["config"].get("data") or {}
    model = [plural(sections["coverage"]["layers"], "layer")]
    if "parameters" in env:
        model.append(f"{number(env['parameters'] / 1e6)} M parameters")
    model += [f"{env[key]}" for key in ("dtype", "device") if key in env]
    facts = [("model", ", ".join(model))]
    if data:
        rows = f"{plural(data['rows'], 'row')} of up to {plural(data['longest_row'], 'token')}"
        facts.append(("data", f"{data['name']}, {rows}, {data['task']}"))
    scale, windows = config["noise_scale"], layer_scale(sections)
    also = f", {windows:g} for windows of layers" if windows != scale else ""
    facts.append(("noise", f"{config.get('error_type', 'noise')}, scale {scale:g}{also}"))
    if clean := sections.get("metrics", {}).get("clean"):
        interval = clean["accuracy"]["low"], clean["accuracy"]["high"]
        facts.append(("accuracy without noise", share(clean["accuracy"]["value"], interval)))
    facts.append(("cost", f"{number(sections['cost']['forward_pass_equivalents'])} forward passes"))
    return facts


def layer_scale(sections: Sections) -> float:
    """Of the noise at windows, groups and single layers: that of all the rest, unless another was asked for."""
    own = number_or_none(sections["config"].get("layer_noise_scale"))
    return float(sections["config"]["noise_scale"]) if own is None else own


def _flat(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(value: Any) -> str:
    """As a configuration file would have it: numbers as they are, lists with commas."""
    if value is None or value in ({}, []):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
