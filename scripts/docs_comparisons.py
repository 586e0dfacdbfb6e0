"""Parts of pages that are made from the results of benchmarks/compare and benchmarks/fingerprint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs_benchmarks import table

__all__ = ["cost", "coverage", "faults", "fingerprint", "honest"]

HERE = Path(__file__).parents[1] / "benchmarks"
MISSING = "Not measured yet (`python benchmarks/compare/run.py`)"
Row = Mapping[str, Any]


def coverage() -> str:
    """How often each metric's interval holds the exact value."""
    found = _read("compare/results.json").get("coverage")
    if not found:
        return MISSING
    return table(("metric", "held"), ((f"`{name}`", _share(row)) for name, row in found["rates"].items()))


def cost() -> str:
    """Time, bytes, and how much smaller than the values."""
    found = _read("compare/results.json").get("cost")
    if not found:
        return MISSING
    lines = []
    for dtype in ("float32", "bfloat16"):
        row = found[dtype]
        ratio, (low, high) = row["recording"]["ratio"], row["recording"]["interval"]
        lines.append(
            (
                dtype,
                f"{row['tokens']} tokens, {row['sites']} sites",
                f"{ratio:.2f} [{low:.2f}, {high:.2f}] bare forwards",
                f"{row['trace_with_floor_in_bare_forwards']:.1f} bare forwards",
                f"{row['file_bytes'] / 1e6:.1f} MB",
                f"{row['bytes_of_all_values'] / 1e6:.0f} MB",
            )
        )
    head = ("", "of", "a recorded run", "with floors", "trace", "all values")
    return f"{table(head, lines)}\n\nComparing 500 sites takes {found['compare_500_sites_s']:.2f} s."


def honest() -> str:
    """How many honest pairs there were, and how many false alarms."""
    found = _read("compare/honest.json").get("summary")
    if not found:
        return MISSING
    worst = [(row["setting"], f"{row['worst']:.2f}", f"`{row['worst_site']}`") for row in found["worst"][:5]]
    return (
        f"Honest pairs (float32 on this machine against other dtypes, prompts, shapes, threads, attention, and devices "
        f"that are built otherwise, over twelve families, both fixtures and the default model): "
        f"{found['comparisons']}, of them {found['with_other_bits']} with other bits. Said to diverge: {found['rate']} "
        f"(`benchmarks/compare/honest.json`). The nearest:\n\n"
        f"{table(('suspect', 'largest error / tolerance', 'at'), worst)}"
    )


def faults() -> str:
    """Hits of first site, sources and amplifiers."""
    found = _read("compare/results.json").get("faults")
    if not found:
        return MISSING
    of = found["summary"]
    lines = [
        ("trials, float32 and bfloat16, every layer", of["trials"]),
        ("changed no bit of the free run", of["inert"]),
        ("below the noise floor everywhere", of["below_the_floor"]),
        ("- of these, first difference in bits at the right site", of["below_the_floor_first_in_bits_right"]),
        ("diverging, of them two at once", f"{of['diverging']}, {of['two_at_once']}"),
        ("- first divergent site right", _share(of["first_is_right"])),
        ("- all sources right, and no other", _share(of["sources_right"])),
        ("- layers behind the first source called amplifiers", _share(of["downstream_layers_named_amplifiers"])),
    ]
    return table(("", ""), lines)


def fingerprint() -> str:
    """What logits alone tell, beside chance and the cosine; how sure it is beside how often it is right."""
    found = _read("fingerprint/results.json")
    if not found:
        return "Not measured yet (`python benchmarks/fingerprint/run.py`)"
    names = {"llama": "Llama fixture", "gpt2": "GPT-2 fixture", "default": "default model"}
    summaries = {name: found[name]["summary"] for name in names if name in found}
    rows: list[list[str]] = [
        ["layers; chance, first / among three", *(_chance(one) for one in summaries.values())],
        [
            "faults; within rounding",
            *(f"{one['all']['faults']}; {one['all']['within_rounding']}" for one in summaries.values()),
        ],
        *([label, *(_value(one[part][key]) for one in summaries.values())] for label, part, key in _LINES),
    ]
    head = ("", *(names[name] for name in summaries))
    sure = _calibration(summaries, names)
    return f"{table(head, rows)}\n\nBlock outputs, by the posterior of the first layer:\n\n{sure}"


_LINES = (
    ("right layer first", "all", "top_1"),
    ("among three", "all", "top_3"),
    ("first is the layer, or one beside it", "all", "first_is_the_layer_or_beside_it"),
    ("right where it tells", "all", "right_where_it_tells"),
    ("cannot tell", "all", "cannot_tell"),
    ("block outputs: right layer first", "outputs_of_blocks", "top_1"),
    ("block outputs: right where it tells", "outputs_of_blocks", "right_where_it_tells"),
    ("kinds that no constant was chosen by: right layer first", "new_kinds", "top_1"),
    ("the cosine: right layer first", "all", "cosine_top_1"),
    ("the cosine: among three", "all", "cosine_top_3"),
)


def _chance(one: Row) -> str:
    return f"{one['layers']}; {100 * one['chance']['top_1']:.1f}% / {100 * one['chance']['top_3']:.1f}%"


def _calibration(summaries: Mapping[str, Row], names: Mapping[str, str]) -> str:
    bins = {name: one["calibration"]["outputs_of_blocks"] for name, one in summaries.items()}
    first = next(iter(bins.values()))
    edges = [(row["from"], row["to"]) for row in first]
    lines = []
    for low, high in edges:
        cells = []
        for rows in bins.values():
            row = next((row for row in rows if (row["from"], row["to"]) == (low, high)), None)
            cells.append(f"{_value(row['right'])}, {row['right']['n']}" if row and row["right"]["n"] else "")
        lines.append((f"{low:g} to {high:g}", *cells))
    return table(("posterior", *(f"{names[name]}: right, of" for name in bins)), lines)


def _value(row: Row) -> str:
    return f"{100 * row['value']:.0f}% [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"


def _share(row: Row) -> str:
    if not row["of"]:
        return ""
    low, high = row["interval"]
    return f"{row['hits']} of {row['of']} ({100 * row['share']:.1f}% [{100 * low:.1f}, {100 * high:.1f}])"


def _read(name: str) -> dict[str, Any]:
    file = HERE / name
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found
