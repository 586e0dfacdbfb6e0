"""What the renderers show, read once from the sections: places with their intervals, modules, thresholds, advice.

Renderers differ in how a thing looks; what there is to show, and in which order, they take from here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan
from typing import Any

from .reading import UNKNOWN, Interval, Section, count, interval, listed, number, part, sortable, text, whole

__all__ = [
    "Advice",
    "Module",
    "Place",
    "Threshold",
    "advice",
    "counts",
    "fragile",
    "modules",
    "next_steps",
    "operators",
    "places",
    "subject",
    "thresholds",
    "unmeasured",
    "windows",
]


@dataclass(frozen=True)
class Place:
    """Where noise was put and what it did: an operator, a window, a group of layers or all together."""

    kind: str
    name: str
    kl: Interval
    lost: Interval
    """relative loss of accuracy"""
    severity: str
    failed: str = ""
    broken: bool = False
    """whether it failed because the noise made the output non-finite; out of memory, say, tells nothing"""
    first: int = -1
    last: int = -1
    amplification: Interval = UNKNOWN
    avalanche: bool = False

    @property
    def conclusive(self) -> bool:
        """Whether the accuracy lost says something."""
        return not self.failed and self.severity != "inconclusive" and not isnan(self.lost.value)

    @property
    def rank(self) -> tuple[float, float]:
        """What to sort by, the worst being the largest; what failed is worse than anything measured."""
        if self.failed:
            return inf, inf
        return self.lost.value if self.conclusive else 0.0, sortable(self.kl.value)

    @property
    def middle(self) -> float:
        """The centre of its layers."""
        return (self.first + self.last) / 2


@dataclass(frozen=True)
class Module:
    """The channels of one module: how many stand out, and by how much."""

    name: str
    layer: int | None
    kind: str
    """its path inside the block"""
    outliers: int
    channels: int
    max_ratio: float
    ratios: tuple[float, ...]
    persistent: tuple[bool, ...]
    non_finite: int


@dataclass(frozen=True)
class Threshold:
    """The smallest noise that costs too much accuracy; NaN where none up to the largest tried does."""

    name: str
    scale: float
    risk: str
    how: str

    def __str__(self) -> str:
        if self.how == "unknown":
            return "unknown"
        return "above 0.2" if isnan(self.scale) else f"{self.scale:.3f}"


@dataclass(frozen=True)
class Advice:
    """A recommendation; its command is "" where there is none to give."""

    priority: str
    component: str
    issue: str
    action: str
    evidence: str
    command: str


# --- rows -------------------------------------------------------------------------------------------------------


def operators(sections: Section) -> list[Place]:
    """Noise on one operator everywhere, the worst first."""
    return sorted(places(part(sections, "operator_analysis"), "operator"), key=lambda row: row.rank, reverse=True)


def windows(sections: Section) -> list[Place]:
    """Windows of consecutive layers, from the first layer to the last."""
    points = part(sections, "executive_summary").get("avalanche_points")
    names = [point.get("layer_range") for point in (points or ()) if isinstance(point, Mapping)]
    found = places(part(sections, "layer_analysis"), "window", avalanches=names)
    return sorted(found, key=lambda row: (row.first, row.last))


def fragile(sections: Section) -> list[Place]:
    """Operators and windows together, the worst first."""
    return sorted([*operators(sections), *windows(sections)], key=lambda row: row.rank, reverse=True)


def places(rows: Section, kind: str, *, avalanches: Any = ()) -> Iterator[Place]:
    """The rows of a level, in their order."""
    for name, row in rows.items():
        if not isinstance(row, Mapping):
            continue
        kl = interval(row.get("kl"))
        yield Place(
            kind,
            name,
            kl,
            _lost(row, kl.n),
            text(row.get("severity")),
            failed=text(row.get("failed")) if "failed" in row else "",
            broken="failed" in row and row.get("non_finite") is not False,
            first=whole(row.get("start_layer")),
            last=whole(row.get("end_layer")),
            amplification=interval(row.get("amplification")),
            avalanche=name in avalanches,
        )


def modules(sections: Section) -> list[Module]:
    """Modules whose channels were looked at, the largest outlier first."""
    found = []
    for name, row in part(part(sections, "channel_analysis"), "per_layer").items():
        ratios = [number(ratio) for ratio in listed(row.get("outlier_ratios"))]
        kinds = [kind == "persistent" for kind in listed(row.get("kinds"))]
        layer, kind = _layer_of(name)
        found.append(
            Module(
                name,
                layer,
                kind,
                len(ratios) or max(0, whole(row.get("num_outliers"))),
                max(0, whole(row.get("total_channels"))),
                number(row.get("max_ratio")),
                tuple(ratios),
                tuple(kinds[: len(ratios)]) + (False,) * (len(ratios) - len(kinds)),
                max(0, whole(row.get("non_finite"))),
            )
        )
    return sorted(found, key=lambda row: sortable(row.max_ratio), reverse=True)


def thresholds(sections: Section) -> list[Threshold]:
    """Critical noise scales, the smallest first."""
    found = [
        Threshold(name, number(row.get("critical_threshold")), text(row.get("risk")), text(row.get("how")))
        for name, row in part(part(sections, "metrics"), "critical_thresholds").items()
    ]
    return sorted(found, key=lambda row: inf if isnan(row.scale) else row.scale)


def advice(sections: Section) -> list[Advice]:
    """What to do, the most urgent first."""
    fields = Advice.__dataclass_fields__
    rows = [row for row in listed(sections.get("recommendations")) if isinstance(row, Mapping)]
    return [Advice(**{field: text(row.get(field)) for field in fields}) for row in rows]


def next_steps(sections: Section) -> list[tuple[str, str]]:
    """Commands to go on with, each with its reason."""
    rows = [row for row in listed(sections.get("next_steps")) if isinstance(row, Mapping)]
    return [(text(row.get("command")), text(row.get("why"))) for row in rows if text(row.get("command"))]


def unmeasured(sections: Section) -> list[tuple[str, str]]:
    """Checks of the map and searches for thresholds that failed, and why."""
    return [(name, text(why)) for name, why in part(part(sections, "metrics"), "failed").items()]


# --- sentences --------------------------------------------------------------------------------------------------


def counts(sections: Section, name: Callable[[str], str] = str) -> str:
    """How much was found at each level, in one line. `name` is how a name from the model is written."""
    summary = part(sections, "executive_summary")
    critical = [text(entry) for entry in listed(summary.get("critical_operators"))]
    rows = windows(sections)
    avalanches = [row.name for row in rows if row.avalanche]
    said = []
    if part(sections, "operator_analysis"):
        said.append(f"critical: {_names(critical, name)}" if critical else "no operator is critical")
    if rows:
        said.append(f"avalanche at {_names(avalanches, name)}" if avalanches else "no avalanche point")
    if seen := modules(sections):
        total = sum(row.outliers for row in seen)
        said.append(f"{total} outlier channel{'s' * (total != 1)} in {len(seen)} modules")
    return f"Risk score {number(summary.get('risk_score')):.0f}: {'; '.join(said) or 'nothing was looked at'}."


def subject(sections: Section, name: Callable[[str], str] = str) -> str:
    """What was looked at, and on what."""
    config, where = part(sections, "config"), part(sections, "environment")
    data, size = part(config, "data"), number(where.get("parameters"))
    facts = [f"{count(part(sections, 'coverage').get('layers'))} layers"]
    facts += [f"{size / 1e6:.1f} M parameters"] if isfinite(size) else []
    dtype, device = (text(where.get(key)) for key in ("dtype", "device"))
    facts += [f"{name(dtype)} on {name(device)}"] if dtype and device else []
    source = f"{name(text(data.get('name')) or 'data')}, {count(data.get('rows'))} rows"
    longest = f" of up to {count(data.get('longest_row'))} tokens"
    return f"{name(text(config.get('model')) or 'a model')}: {', '.join(facts)}; {source}{longest}"


def _names(names: list[str], name: Callable[[str], str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name(entry) for entry in names[:most]) + more


def _lost(row: Section, n: int) -> Interval:
    ends = [number(end) for end in listed(row.get("degradation_interval"))]
    low, high = ends if len(ends) == 2 else (nan, nan)
    return Interval(number(row.get("degradation")), low, high, n=n)


def _layer_of(path: str) -> tuple[int | None, str]:
    """The block a module lies in, by the first number of its path, and what comes after it."""
    found = re.search(r"(?:^|\.)(\d{1,6})\.(.*)", path, re.DOTALL | re.ASCII)
    return (int(found[1]), found[2]) if found else (None, path)
