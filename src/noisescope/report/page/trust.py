"""How far the figures can be believed, and where they come from: agreement, coverage, cost, environment, readings."""

from ..figures import NOTHING, figure, number, number_or_none, plural, share
from ..rows import Sections, facts, layer_scale
from .table import Kind, Table

__all__ = [
    "agreement",
    "configuration",
    "costs",
    "coverage",
    "environment",
    "observer",
    "proxies",
    "readings",
    "summary_facts",
]

Facts = list[tuple[str, str]]
"""pairs of what and how much"""


def agreement(sections: Sections) -> Facts:
    """How the map did where it was checked by injection."""
    found = sections["map"].get("agreement") or {}
    told = []
    if found:
        told.append(("cells checked by injection", f"{found['checked']} of {len(sections['map']['cells'])}"))
    if rank := found.get("spearman"):
        told.append(("rank correlation (Spearman) of predicted and measured", figure(rank)))
        told.append(("predicted / measured, median", number(found["ratio_median"])))
        if quartiles := found.get("ratio_quartiles"):
            told.append(("its quartiles", f"{number(quartiles[0])} to {number(quartiles[1])}"))
    elif found:
        told.append(("rank correlation", "too few checked cells to say"))
    for operator, factor in (sections["map"].get("corrections") or {}).items():
        told.append((f"unchecked cells of {operator} moved by", f"x {number(factor)}"))
    for name, why in (sections["metrics"].get("failed") or {}).items():
        told.append((f"FAILED: {name}", why))
    return told


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
    panel = sections["metrics"].get("agreement") or {}
    for row in panel.get("proxies", ()):
        holds = "yes" if row.get("holds") is True else "no" if row.get("holds") is False else NOTHING
        verdict = row["verdict"] + (f": {row['reason']}" if row.get("reason") else "")
        figures = figure(row["spearman"]), figure(row["kendall"])
        rows.append((row["name"], row.get("expected") or NOTHING, *figures, holds, verdict))
    cross = sections["cross_level"]
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
    difference = found.get("steps_difference", sections["metrics"].get("attention_steps_difference"))
    told = []
    if "bit_identical" in found:
        told.append(("instrumented run is bit-identical to the bare model", "yes" if found["bit_identical"] else "no"))
    if difference is not None:
        told.append(("largest difference from computing fused attention in steps", number(difference)))
    return told


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
    return list(facts(sections["environment"]))


def configuration(sections: Sections) -> Facts:
    """What was asked for, nested keys with dots."""
    return list(facts(sections["config"]))


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
    for name, row in sections["readings"].items():
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
    told = [("model", ", ".join(model))]
    if data:
        rows = f"{plural(data['rows'], 'row')} of up to {plural(data['longest_row'], 'token')}"
        told.append(("data", f"{data['name']}, {rows}, {data['task']}"))
    scale, windows = config["noise_scale"], layer_scale(sections)
    also = f", {windows:g} for windows of layers" if windows != scale else ""
    told.append(("noise", f"{config.get('error_type', 'noise')}, scale {scale:g}{also}"))
    if clean := sections["metrics"].get("clean"):
        interval = clean["accuracy"]["low"], clean["accuracy"]["high"]
        told.append(("accuracy without noise", share(clean["accuracy"]["value"], interval)))
    told.append(("cost", f"{number(sections['cost']['forward_pass_equivalents'])} forward passes"))
    return told
