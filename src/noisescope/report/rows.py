"""What the renderers show, read once from the sections: places with their intervals, modules, thresholds, advice.

Renderers differ in how a thing looks; what there is to show, and in which order, they take from here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any, TypeAlias

from .figures import UNKNOWN, Interval
from .layers import inner_path, layer_of_module

__all__ = [
    "LARGEST_SCALE",
    "Advice",
    "Module",
    "Place",
    "Sections",
    "Threshold",
    "advice",
    "channel_statistics",
    "facts",
    "fragile",
    "layer_scale",
    "modules",
    "next_steps",
    "operators",
    "places",
    "several",
    "sortable",
    "thresholds",
    "windows",
    "worst_cells",
]

Sections: TypeAlias = Mapping[str, Any]
"""a report, or a part of one, as it was checked on loading"""

LARGEST_SCALE = 0.2
"""the search for a critical threshold ends here"""


@dataclass(frozen=True)
class Place:
    """Where noise was put and what it did: an operator, a window, a group of layers or all together."""

    kind: str
    name: str
    first: int = -1
    last: int = -1
    """its layers, where it has some"""
    kl: Interval = UNKNOWN
    lost: Interval = UNKNOWN
    """relative loss of accuracy"""
    severity: str = ""
    failed: str = ""
    broken: bool = False
    """whether it failed because the noise made the output non-finite; out of memory, say, tells nothing"""
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
    """which of them stand out in every token; others do so in single ones"""
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
        return f"above {LARGEST_SCALE:g}" if isnan(self.scale) else f"{self.scale:.3f}"


@dataclass(frozen=True)
class Advice:
    """A recommendation; its command is "" where there is none to give."""

    priority: str
    component: str
    issue: str
    action: str
    evidence: str
    command: str


def operators(sections: Sections) -> list[Place]:
    """Noise on one operator everywhere, the worst first."""
    return sorted(places(sections["operator_analysis"], "operator"), key=lambda row: row.rank, reverse=True)


def windows(sections: Sections) -> list[Place]:
    """Windows of consecutive layers, from the first layer to the last."""
    names = {point["layer_range"] for point in sections["executive_summary"]["avalanche_points"]}
    found = places(sections["layer_analysis"], "window", avalanches=names)
    return sorted(found, key=lambda row: (row.first, row.last))


def fragile(sections: Sections) -> list[Place]:
    """Operators and windows together, the worst first."""
    return sorted([*operators(sections), *windows(sections)], key=lambda row: row.rank, reverse=True)


def several(sections: Sections) -> list[Place]:
    """All operators at once, the core ones, and thirds of the layers."""
    metrics = sections["metrics"]
    return [*places(metrics.get("together", {}), "together"), *places(metrics.get("groups", {}), "group")]


def places(rows: Sections, kind: str, *, avalanches: Iterable[str] = ()) -> Iterator[Place]:
    """The rows of a level, in their order."""
    for name, row in rows.items():
        first, last = row.get("start_layer", -1), row.get("end_layer", -1)
        if "failed" in row:
            yield Place(kind, name, first, last, failed=row["failed"], broken=row.get("non_finite", True))
            continue
        kl, (low, high) = Interval.of(row["kl"]), row["degradation_interval"]
        yield Place(
            kind,
            name,
            first,
            last,
            kl,
            Interval(row["degradation"], low, high, n=kl.n),
            row["severity"],
            amplification=Interval.of(row.get("amplification")),
            avalanche=name in avalanches,
        )


def worst_cells(sections: Sections) -> list[Mapping[str, Any]]:
    """The cells of the map, the most fragile first."""
    cells = sections["map"].get("cells", ())
    return sorted(cells, key=lambda cell: sortable(cell["kl"]["value"]), reverse=True)


def channel_statistics(sections: Sections) -> Mapping[str, Any]:
    """Module path -> what its channels did; nothing where channels were not looked at."""
    found: Mapping[str, Any] = (sections["channel_analysis"] or {}).get("per_layer", {})
    return found


def modules(sections: Sections) -> list[Module]:
    """Modules whose channels were looked at, the largest outlier first."""
    found = [
        Module(
            name,
            layer_of_module(name),
            inner_path(name),
            row["num_outliers"],
            row["total_channels"],
            row["max_ratio"],
            tuple(row["outlier_ratios"]),
            tuple(kind == "persistent" for kind in row["kinds"]),
            row["non_finite"],
        )
        for name, row in channel_statistics(sections).items()
    ]
    return sorted(found, key=lambda row: sortable(row.max_ratio), reverse=True)


def thresholds(sections: Sections) -> list[Threshold]:
    """Critical noise scales, the smallest first."""
    found = [
        Threshold(
            name, nan if row["critical_threshold"] is None else row["critical_threshold"], row["risk"], row["how"]
        )
        for name, row in sections["metrics"].get("critical_thresholds", {}).items()
    ]
    return sorted(found, key=lambda row: inf if isnan(row.scale) else row.scale)


def advice(sections: Sections) -> list[Advice]:
    """What to do, the most urgent first."""
    return [Advice(**{field: row[field] for field in Advice.__annotations__}) for row in sections["recommendations"]]


def next_steps(sections: Sections) -> list[tuple[str, str]]:
    """Commands to go on with, each with its reason."""
    return [(row["command"], row["why"]) for row in sections["next_steps"] if row["command"]]


def facts(table: Sections, before: str = "") -> Iterator[tuple[str, str]]:
    """What a table says, names of tables inside it with dots, values as a configuration file would have them."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from facts(value, f"{before}{name}.")
        elif value is not None and value != []:
            yield f"{before}{name}", _plain(value)


def layer_scale(sections: Sections) -> float:
    """Of the noise at windows, groups and single layers: that of all the rest, unless another was asked for."""
    config = sections["config"]
    own = config.get("layer_noise_scale")
    return float(config["noise_scale"] if own is None else own)


def sortable(value: float) -> float:
    """The same, with what is unknown below everything: NaN has no place in an order."""
    return -inf if isnan(value) else value


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
