"""One site in words: where it is, how far it is off, and its metrics as figures."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan
from typing import Any, TypeAlias

from ..figures import NOTHING, Interval, number, plural
from ..layers import inner_path
from ..layers import label as layer_label
from ..rows import Sections

__all__ = [
    "NEAR_ONE",
    "Row",
    "call",
    "figure",
    "how_far",
    "inside",
    "label",
    "measured",
    "percent",
    "place",
    "site_at",
    "size",
    "times",
    "value",
    "worst",
]

Row: TypeAlias = Mapping[str, Any]

OUTSIDE = "outside"
"""of all layers"""
NEAR_ONE = ("cosine", "pearson")
"""metrics that are told by how much they are below 1"""
_SHARES = ("mape", "within_01", "within_05")
"""metrics in percent"""


def site_at(sections: Sections, name: object, stage: object) -> Row | None:
    """The site of that name in that stage; in any, where a stage is not told."""
    named = [site for site in sections["sites"] if site["name"] == name]
    return next((site for site in named if site["stage"] == stage), next(iter(named), None))


def label(layer: int | str | None) -> str:
    """`L7` for a block, else its name."""
    return OUTSIDE if layer is None else layer_label(layer)


def place(site: Row) -> str:
    """As in "L3 linear (mlp.down_proj)"."""
    return f"{label(site['layer'])} {inside(site)}"


def inside(site: Row) -> str:
    """The same within its layer."""
    path, (_, part) = inner_path(site["module"]), _numbers(site)
    where = "" if path in ("", "the block") else f" ({path})"
    stage = "" if site["stage"] == "prefill" else f", {site['stage']}"
    phase = "" if site["phase"] == "forward" else f", {site['phase']}"
    return f"{call(site)}{where}{stage}{phase}{part}"


def call(site: Row) -> str:
    """The operator, with a number from its second call on."""
    return f"{site['operator']}{_numbers(site)[0]}"


def _numbers(site: Row) -> tuple[str, str]:
    """Of the call and of the gradient, where they are not the first: `residual.1.backward.2` has 1 and 2."""
    tail = site["name"].removeprefix(f"{site['module']}.{site['operator']}.").split(".")
    numbers = [tail[at] if len(tail) > at and tail[at].isdecimal() else "" for at in (0, 2)]
    return (f" {numbers[0]}" if numbers[0].strip("0") else ""), (f" {numbers[1]}" if numbers[1].strip("0") else "")


def how_far(site: Row) -> str:
    """How far a site is off."""
    mine, other = site["non_finite"]
    if mine != other:
        return f"{plural(other, 'value is', 'values are')} not finite there, {number(mine)} in the reference"
    error = f"relative error {number(value(site, 'relative_error'))}"
    return error if site["tolerance"] is None else f"{error}, {times(site)}"


def times(site: Row) -> str:
    """Its error in units of what is tolerated."""
    found = size(site)
    if site["non_finite"][0] != site["non_finite"][1]:
        return "other values are not finite than in the reference"
    if site["same_bits"]:
        return "bits equal"
    if site["tolerance"] is None:
        return "no tolerance to judge by"
    if not isfinite(found):
        return "beyond anything that is tolerated"
    return f"{number(found)} {'of' if found <= 1 else 'times'} what is tolerated"


def size(site: Row) -> float:
    """The same as a number."""
    return inf if site["excess"] is None else float(site["excess"])


def worst(sites: Sequence[Row]) -> list[Row]:
    """Sites that differ, those furthest beyond what is tolerated first; without a tolerance, the largest errors."""
    differing = [site for site in sites if not site["same_bits"]]
    return sorted(differing, key=lambda site: (-size(site), -_sortable(value(site, "relative_error"))))


def value(site: Row, metric: str) -> float | None:
    """A metric without its interval; None where there is none."""
    found: float | None = (site["metrics"].get(metric) or {}).get("value")
    return found


def measured(site: Row, metric: str) -> str:
    """A metric with its interval; those near 1 as how much they are below it, shares and MAPE in percent."""
    return figure(site["metrics"].get(metric), metric)


def figure(found: Row | None, metric: str) -> str:
    """The same of a figure by itself."""
    if not found or found["value"] is None:
        return NOTHING
    middle, low, high = (nan if found[end] is None else float(found[end]) for end in ("value", "low", "high"))
    if metric in NEAR_ONE:
        middle, low, high = 1 - middle, 1 - high, 1 - low
    elif metric in _SHARES:
        middle, low, high = 100 * middle, 100 * low, 100 * high
    return number(middle) if low == middle == high else str(Interval(middle, low, high, n=1))


def percent(found: float | None) -> str:
    """A share in percent to three digits, however small."""
    return NOTHING if found is None else f"{number(100 * found)} %"


def _sortable(found: float | None) -> float:
    return inf if found is None or not isfinite(found) else found
