"""Parts of pages that are made from the results of benchmarks/locate: no table differs from what was run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["cost", "healthy", "hits", "identities", "intermittent", "limits", "srdd", "table"]

HERE = Path(__file__).parents[1] / "benchmarks" / "locate"
Row = Mapping[str, Any]


def hits() -> str:
    """Top-1, top-3, kind and inert share, by group."""
    results = _read("results.json")
    lines: list[tuple[str, Row]] = []
    if outputs := results.get("outputs"):
        lines += [("block output, default model", outputs["all"])]
        lines += [(f"- {_part(name)}", row) for name, row in outputs["by_part"].items()]
    if operators := results.get("operators"):
        lines += [("operators inside blocks, embed, final_norm, head; default model", operators["all"])]
        lines += [(f"- `{name}`", row) for name, row in operators["by_operator"].items()]
        lines += [("- fine rounding (19 bits kept) in float32 products", operators["fine_rounding_in_products"])]
    if families := results.get("families"):
        lines += [("drawn at random, eleven families", families["all"])]
        lines += [(f"- `{name}`", row) for name, row in families["by_kind"].items()]
    rows = table(
        ("faults", "trials", "changed no bit", "right operator first", "among three", "others blamed", "kind named"),
        ((name, row["trials"], row["inert"]["hits"], *map(_share, _columns(row))) for name, row in lines),
    )
    missed = [fault for part in (outputs, operators, families) if part for fault in part["all"]["misses"]]
    left = [name for name in ("outputs", "operators", "families") if name not in results]
    later = f" {_missing()}: {', '.join(left)}." if left else ""
    return f"{rows}\n\nMissed: {', '.join(f'`{fault}`' for fault in missed) or 'none'}.{later}"


def limits() -> str:
    """The smallest magnitude that is found in 95% of at least 60 trials."""
    results = _read("results.json")
    if "limits" not in results:
        return _missing()
    places = ("block output", "linear", "rms_norm", "softmax")
    lines = []
    for dtype in ("float32", "bfloat16"):
        for kind, found in results["limits"][dtype].items():
            cells = [_limit(found[place], kind) if place in found else "" for place in places]
            lines.append((f"{kind}, {dtype}", *cells))
    rows = table(("", *places), lines)
    note = (
        "Smallest magnitude of a sweep in decades (bits dropped for `wrong_rounding`) at which at least 95% of 64 "
        "trials are found, Llama fixture, 16 tokens. `*`: the next one changes no bit; `+`: the end of the sweep."
    )
    return f"{note}\n\n{rows}"


def intermittent() -> str:
    """Faults that strike now and then, beside what chance allows."""
    found = _read("results.json").get("intermittent")
    if not found:
        return _missing()
    cells = [row for name, row in found.items() if name != "wall_s"]
    lines = ((f"{row['p']:g}", row["runs"], f"{100 * row['due']:.1f}%", _share(row)) for row in cells)
    return table(("p of a call", "`--runs`", "1 - (1 - p)ⁿ", "found"), lines)


def cost() -> str:
    """Forward passes, time and memory."""
    results = _read("results.json")
    times, memory = results.get("cost"), results.get("memory")
    if not times or not memory:
        return _missing()
    lines = [
        (
            name,
            f"{row['forward_pass_equivalents']:.1f}",
            " ".join(f"{ratio:.1f}" for ratio in times[name]["time_in_bare_passes"]),
            f"{row['peak_mb_beyond_a_bare_pass']:.1f} MB",
            f"{row['one_layer_in_float64_mb']:.1f} MB",
        )
        for name, row in memory.items()
        if name != "wall_s"
    ]
    head = ("", "forward passes", "time / bare pass, three runs", "memory beyond a bare pass", "one layer in float64")
    return table(head, lines)


def healthy() -> str:
    """How many healthy runs there were, and how many false alarms."""
    found = _read("healthy.json").get("summary")
    if not found:
        return _missing()
    makes: dict[str, dict[str, float]] = {}
    for name, ratios in found["largest_ratio"].items():
        make, _, dtype = name.rpartition(", ")
        makes.setdefault(make, {})[dtype] = max(ratios.values(), default=0.0)
    dtypes = ("float32", "bfloat16", "float16")
    rows = table(
        ("arithmetic, at every operator of the pass", *(f"largest error / bound, {dtype}" for dtype in dtypes)),
        ((make, *(f"{of[dtype]:.2f}" if dtype in of else "" for dtype in dtypes)) for make, of in makes.items()),
    )
    return (
        f"Healthy runs: {found['runs']}, called healthy: {found['healthy']}. False alarms: {found['rate']}; "
        f"{found['sites']:,} calls with {found['elements']:,} elements. Models, dtypes, prompts, shapes from 1 x 1, "
        f"threads, eager and fused attention, rounded weights, and devices that compute otherwise.\n\n{rows}"
    )


def identities() -> str:
    """Operator and identity against kind."""
    measured = _read("results.json").get("identities")
    if not measured:
        return _missing()
    rows = {(op, name): cells for op, found in measured.items() if op != "wall_s" for name, cells in found.items()}
    kinds = list(dict.fromkeys(kind for cells in rows.values() for kind in cells))
    lines = [
        (f"`{operator}` {name}", *(_percent(cells[kind]) if kind in cells else "" for kind in kinds))
        for (operator, name), cells in rows.items()
    ]
    return table(("", *kinds), lines)


def srdd() -> str:
    """What srdd finds by itself, beside chance."""
    results = _read("srdd.json")
    lines = []
    for model in ("llama", "gpt2"):
        found = results[model]["summary"]
        lines.append(
            (
                f"{model} fixture, {found['faults']} faults",
                _interval(found["top_1"]),
                _interval(found["top_3"]),
                f"{100 * found['chance']['top_1']:.1f}% / {100 * found['chance']['top_3']:.1f}%",
                _interval(found["believed"]["false_alarms"]),
                f"{found['forwards']:.0f}",
            )
        )
    head = ("", "right layer first", "among three", "chance", "names a layer of a healthy device", "forward passes")
    return table(head, lines)


def _read(name: str) -> dict[str, Any]:
    file = HERE / name
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _missing() -> str:
    return "Not measured yet (`python benchmarks/locate/run.py`)"


def _columns(row: Row) -> Sequence[Row]:
    return [row[name] for name in ("top1", "top3", "others_blamed", "kind")]


def _share(found: Row) -> str:
    if not found["of"]:
        return ""
    return f"{found['hits']}/{found['of']} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]%"


def _percent(found: Row) -> str:
    return f"{100 * found['share']:.0f}" if found["of"] else ""


def _interval(found: Row) -> str:
    return f"{100 * found['value']:.1f}% [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _part(name: str) -> str:
    part, channels = (float(number) for number in name.strip("()").split(","))
    size = {1.0: "documented magnitude", 0.1: "a tenth of it", 0.01: "a hundredth of it"}[part]
    return size if channels == 1 else "one channel" if channels < 1e-6 else f"{100 * channels:g}% of the channels"


def _limit(found: Row, kind: str) -> str:
    if found["limit"] is None:
        return "none found"
    mark = "*" if found["ends_inert"] else "+" if found["sweep"][-1]["magnitude"] == found["limit"] else ""
    return f"{found['limit']:.0f} bits{mark}" if kind == "wrong_rounding" else f"{found['limit']:.0e}{mark}"


def table(head: Iterable[Any], lines: Iterable[Iterable[Any]]) -> str:
    """Markdown."""
    head = list(head)
    rows = [head, ["---"] * len(head), *(list(line) for line in lines)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
