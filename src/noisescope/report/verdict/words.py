"""What a verdict says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from ..figures import number, plural
from ..rows import Sections

__all__ = [
    "again",
    "alarms",
    "coverage",
    "headline",
    "identities",
    "method_sentence",
    "on_host",
    "outcome",
    "subject",
    "truth_line",
]

Name: TypeAlias = Callable[[str], str]
Row: TypeAlias = Mapping[str, Any]


# --- the verdict ------------------------------------------------------------------------------------------------


def outcome(sections: Sections) -> str:
    """HEALTHY, FAULTY or INCONCLUSIVE."""
    return str(sections["verdict"]["outcome"]).upper()


def headline(sections: Sections, name: Name = str) -> str:
    """The verdict in a sentence or two."""
    found, suspects = sections["verdict"], sections["suspects"]
    if suspects:
        first, more = suspects[0], len(suspects) - 1
        others = f" {plural(more, 'more operator is', 'more operators are')} suspect." if more else ""
        return f"Faulty at {name(first['where'])}: {_looks(name(first['kind']))}.{others}"
    if found["outcome"] != "healthy":
        return f"It cannot be told: {name(next(iter(found['missing']), 'nothing was checked'))}."
    checked = plural(sections["coverage"]["checked"], "call was", "calls were")
    return f"Nothing is wrong: {checked} checked{_worst(found['worst_ratio'])}."


def alarms(sections: Sections) -> str:
    """How often a healthy device would be called faulty; nothing where nobody knows."""
    rate = sections["verdict"].get("false_alarm_rate")
    return f"Fewer than {rate:.0e} of such runs on a healthy device end in a false alarm." if rate else ""


def subject(sections: Sections, name: Name = str) -> Iterator[tuple[str, str]]:
    """What was looked at, how, and at what price: pairs of what and how much."""
    config, where, found = sections["config"], sections["environment"], sections["verdict"]
    model = [plural(sections["coverage"]["layers"], "layer")]
    if where.get("dtype") and where.get("device"):
        model.append(f"{name(where['dtype'])} on {name(where['device'])}")
    yield "model", ", ".join(model)
    if shape := config.get("shape"):
        yield "input", " x ".join(map(number, shape)) + " tokens"
    yield "checked", plural(sections["coverage"]["checked"], "call")
    if found.get("worst_ratio") is not None:
        yield "largest error", _size(found["worst_ratio"])
    yield "cost", f"{number(sections['cost']['forward_pass_equivalents'])} forward passes"


def coverage(sections: Sections, name: Name = str) -> Iterator[tuple[str, str]]:
    """How much was asked of the device, by each method: pairs of what and how much."""
    calls = sections["sites"]
    hosted = [call for call in calls if call["rule"] is not None]
    repeated = [call for call in calls if call["differing"] is not None]
    asked = [call for call in calls if call["identities"]]
    yield "layers", number(sections["coverage"]["layers"])
    yield "calls", number(sections["coverage"]["checked"])
    if hosted:
        same = sum(call["ratio"] == 0 for call in hosted)
        yield "computed again on the host", f"{number(len(hosted))}, bit for bit the same {number(same)}"
    if repeated:
        same = sum(not call["differing"] for call in repeated)
        yield "asked again of the device", f"{number(len(repeated))}, the same bits {number(same)}"
    if asked:
        count, failed = (sum(len(call[key]) for call in asked) for key in ("identities", "failed"))
        yield "identities asked for", f"{number(count)} at {plural(len(asked), 'call')}, failed {number(failed)}"
    for line in sections["verdict"]["not_covered"]:
        yield "not covered", name(line)


def truth_line(row: Row, name: Name = str) -> str:
    """Where a simulated fault really was, and how it fared: layer 15, linear (mlp.down_proj), rank 1."""
    layer, operator = row["layer"], row["operator"]
    module = row["site"].rpartition(f".{operator}")[0]
    inside = module.split(f".{layer}.", 1)[-1] if isinstance(layer, int) else module
    place = f"layer {layer}" if isinstance(layer, int) else str(layer or "outside the model")
    where = f"{place}, {operator} ({inside})" if inside else f"{place}, {operator}"
    return f"{name(where)}, {_fate(row)}"


def method_sentence(row: Row) -> str:
    """What a method found; on a terminal it has columns, elsewhere punctuation."""
    first, *rest = re.split(" {2,}", row["sentence"])
    return f"{first}: {', '.join(rest)}" if rest else first


def _fate(row: Row) -> str:
    if row["rank"]:
        return f"rank {row['rank']}" + (" (it struck only when asked again)" if row["inert"] else "")
    if row["inert"]:
        return "inert: changed no bit"
    layer = row.get("layer_rank") or row.get("srdd_rank")
    return f"not named, but its layer has rank {layer}" if layer else "not found"


def _looks(kind: str) -> str:
    return "it looks like no fault that has a name" if kind == "other" else f"it looks like {kind}"


def _worst(ratio: float | None) -> str:
    if ratio is None:
        return ""
    if ratio == 0:
        return ", and every one is bit for bit as on the host"
    return f", the worst at {_size(ratio)}"


def _size(ratio: float) -> str:
    if ratio == 0:
        return "none"
    return f"{number(ratio)} {'of' if ratio <= 1 else 'times'} its rounding bound"


# --- one call ---------------------------------------------------------------------------------------------------


def on_host(call: Row) -> str:
    """What the host says of a call."""
    rule, ratio = call["rule"], call["ratio"]
    if rule is None:
        return "not computed on the host"
    if ratio is None:
        return f"differs from the host, and no rounding bound is known ({rule})"
    if ratio == 0:
        return f"bit for bit as on the host ({rule})"
    off = f", {number(call['bad'])} of {plural(call['elements'], 'element')} off" if ratio > 1 else ""
    return f"{_size(ratio)} ({rule}){off}"


def again(call: Row) -> str:
    """Whether it gives the same bits when it is asked again."""
    differing = call["differing"]
    if differing is None:
        return "not asked again"
    if not differing:
        return "the same bits when asked again"
    return f"{number(differing)} of {plural(call['elements'], 'element')} otherwise when asked again"


def identities(call: Row) -> list[str]:
    """Which identities held, and which failed."""
    failed = list(call["failed"])
    held = [name for name in call["identities"] if name not in failed]
    found = [f"identities that hold: {', '.join(held)}"] if held else []
    return found + ([f"identities that fail: {', '.join(failed)}"] if failed else [])
