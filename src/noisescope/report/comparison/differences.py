"""What got better and what got worse from one report to another, with significance.

    Differences.between(before, after)      from the sections of two reports
    found.verdict                           "3 rows significantly worse, 1 better, 47 not distinguishable"

Rows that are in both are compared: operators, windows, groups and single layers, the cells of the map. In each of these
families the chance of any false alarm is at most 5% (Holm); see `significance` for the test. Runs that were asked
differently are compared too, and it is said first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, log, nan
from typing import Any

from ..reading import Interval, Section, interval, number, part
from ..rows import Place, places
from .significance import LEVEL, UNTESTED, Shift, holm, shift

__all__ = ["Differences", "Fact", "RowDifference"]

ASKED = ("noise_scale", "error_type")
"""what must be equal for figures to mean the same"""
_SAME_DATA = (
    "Both runs saw the same sequences: their difference varies less than the test assumes, which finds fewer for it."
)
_OTHER_DATA = "The runs saw different data: a difference may be one of the data."


@dataclass(frozen=True)
class Fact:
    """Something that differs between the runs."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


@dataclass(frozen=True)
class RowDifference:
    """One place in both reports. `kl` is a factor, `lost` a difference of shares."""

    kind: str
    name: str
    before: Place
    after: Place
    kl: Shift
    lost: Shift
    p: float
    """of the more certain of the two, adjusted for its family"""
    verdict: str
    """worse, better, mixed, not distinguishable or untested"""

    @property
    def effect(self) -> float:
        """How large the change is, for sorting: that of the KL on the scale of logarithms."""
        return abs(log(self.kl.effect)) if isfinite(self.kl.effect) and self.kl.effect > 0 else 0.0


@dataclass(frozen=True)
class Differences:
    """Two reports side by side."""

    asked: tuple[Fact, ...]
    """questions that differ so much that the figures do not mean the same"""
    facts: tuple[Fact, ...]
    """everything else that differs between the runs"""
    rows: tuple[RowDifference, ...]
    """significant ones first, each by effect"""
    only_before: Mapping[str, tuple[str, ...]]
    only_after: Mapping[str, tuple[str, ...]]
    headline: tuple[Fact, ...]
    """risk and clean accuracy"""
    same_data: bool

    @classmethod
    def between(cls, before: Section, after: Section) -> "Differences":
        """Compares the sections of two reports."""
        facts = list(_facts(before, after))
        rows: list[RowDifference] = []
        alone: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = ({}, {})
        for kind, (left, right) in _families(before, after).items():
            rows += _compare(kind, left, right)
            for found, one, other in ((alone[0], left, right), (alone[1], right, left)):
                if names := tuple(name for name in one if name not in other):
                    found[kind] = names
        order = {"worse": 0, "mixed": 0, "better": 1, "not distinguishable": 2, "untested": 3}
        return cls(
            asked=tuple(fact for fact in facts if fact.name in ASKED),
            facts=tuple(fact for fact in facts if fact.name not in ASKED),
            rows=tuple(sorted(rows, key=lambda row: (order[row.verdict], -row.effect))),
            only_before=alone[0],
            only_after=alone[1],
            headline=tuple(_headline(before, after)),
            same_data=_fingerprint(before) == _fingerprint(after) != "",
        )

    def count(self, verdict: str) -> int:
        """How many rows are that."""
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.rows:
            return "nothing to compare: no row is in both reports"
        said = f"{self._plural('worse')} significantly worse, {self.count('better')} better"
        said += f", {self.count('not distinguishable')} not distinguishable"
        for verdict in ("mixed", "untested"):
            said += f", {self.count(verdict)} {verdict}" if self.count(verdict) else ""
        asked = f"asked differently: {', '.join(map(str, self.asked))}; " if self.asked else ""
        return asked + said

    @property
    def caveats(self) -> list[str]:
        """How far this can be trusted."""
        found = [f"Holm's adjustment: at most {LEVEL:.0%} chance of any false alarm in each family of rows."]
        if self.asked:
            found.insert(0, "The runs were asked differently: a difference need not be one of the models.")
        return [*found, _SAME_DATA if self.same_data else _OTHER_DATA]

    def _plural(self, verdict: str) -> str:
        count = self.count(verdict)
        return f"{count} row{'s' * (count != 1)}"

    def as_json(self) -> dict[str, Any]:
        """Plain values; nothing of where the files were."""
        return {
            "verdict": self.verdict,
            "level": LEVEL,
            "counts": {
                name: self.count(name) for name in ("worse", "better", "mixed", "not distinguishable", "untested")
            },
            "asked": [vars(fact) for fact in self.asked],
            "facts": [vars(fact) for fact in self.facts],
            "headline": [vars(fact) for fact in self.headline],
            "rows": [_row_json(row) for row in self.rows],
            "only_before": {kind: list(names) for kind, names in self.only_before.items()},
            "only_after": {kind: list(names) for kind, names in self.only_after.items()},
            "caveats": self.caveats,
        }


# --- rows -------------------------------------------------------------------------------------------------------


def _families(before: Section, after: Section) -> dict[str, tuple[dict[str, Place], dict[str, Place]]]:
    """kind -> rows of both, by name."""
    return {kind: (dict(read(before)), dict(read(after))) for kind, read in _FAMILIES.items()}


def _level(*path: str) -> Any:
    def read(sections: Section) -> Iterator[tuple[str, Place]]:
        found = sections
        for name in path:
            found = part(found, name)
        yield from ((place.name, place) for place in places(found, path[-1]))

    return read


def _cells(sections: Section) -> Iterator[tuple[str, Place]]:
    """Cells as they were predicted, which all are; what was measured besides is in the levels."""
    for cell in part(sections, "map").get("cells") or ():
        name = f"{cell['layer']} {cell['operator']}"
        yield name, Place("cell", name, interval(cell.get("predicted") or cell["kl"]), interval(None), "inconclusive")


def _layers(sections: Section) -> Iterator[tuple[str, Place]]:
    """Single layers; one that was injected is another row than one read off the map, which is only nearly the same."""
    rows = part(part(sections, "metrics"), "layers")
    for place in places(rows, "layer"):
        name = f"{place.name} (measured)" if rows[place.name].get("how") == "measured" else place.name
        yield name, place


_FAMILIES = {
    "operator": _level("operator_analysis"),
    "window": _level("layer_analysis"),
    "group": _level("metrics", "groups"),
    "layer": _layers,
    "cell": _cells,
}


def _compare(kind: str, left: Mapping[str, Place], right: Mapping[str, Place]) -> Iterator[RowDifference]:
    both = [name for name in left if name in right]
    pairs = [(left[name], right[name]) for name in both]
    kl = [shift(before.kl, after.kl, positive=True) for before, after in pairs]
    lost = [_lost(before, after) for before, after in pairs]
    adjusted = holm([change.p for change in (*kl, *lost)])
    for at, (before, after) in enumerate(pairs):
        ps = adjusted[at], adjusted[len(both) + at]
        verdict = _verdict(before, after, ((kl[at], 1.0, ps[0]), (lost[at], 0.0, ps[1])))
        known = [p for p in ps if isfinite(p)]
        yield RowDifference(kind, both[at], before, after, kl[at], lost[at], min(known, default=nan), verdict)


def _lost(before: Place, after: Place) -> Shift:
    if not before.conclusive or not after.conclusive:
        return UNTESTED
    return shift(before.lost, after.lost, positive=False)


def _verdict(before: Place, after: Place, changes: tuple[tuple[Shift, float, float], ...]) -> str:
    if before.failed or after.failed:  # no figure, and no doubt where one of them made the output non-finite
        if before.broken == after.broken or (before.failed and after.failed):
            return "untested"
        return "worse" if after.broken else "better"
    found = {"worse" if change.effect > none else "better" for change, none, p in changes if p <= LEVEL}
    if not found:
        return "not distinguishable" if any(isfinite(p) for _, _, p in changes) else "untested"
    return found.pop() if len(found) == 1 else "mixed"


def _row_json(row: RowDifference) -> dict[str, Any]:
    def side(place: Place) -> dict[str, Any]:
        if place.failed:
            return {"failed": place.failed}
        ends: dict[str, Interval] = {"kl": place.kl, "accuracy_lost": place.lost}
        return {name: [figure.value, figure.low, figure.high] for name, figure in ends.items()}

    return {
        "kind": row.kind,
        "name": row.name,
        "verdict": row.verdict,
        "p_adjusted": row.p,
        "kl_factor": vars(row.kl),
        "accuracy_lost_difference": vars(row.lost),
        "before": side(row.before),
        "after": side(row.after),
    }


# --- facts ------------------------------------------------------------------------------------------------------


def _facts(before: Section, after: Section) -> Iterator[Fact]:
    """Whatever differs in configuration and environment, by its name there."""
    left, right = (_flat({"config": part(s, "config"), "environment": part(s, "environment")}) for s in (before, after))
    for name in dict.fromkeys((*left, *right)):
        one, other = left.get(name, "none"), right.get(name, "none")
        if one != other:
            yield Fact(name.removeprefix("config.").removeprefix("environment."), one, other)


def _flat(table: Section, before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = f"{value:g}" if isinstance(value, float) else str(value)
    return found


def _headline(before: Section, after: Section) -> Iterator[Fact]:
    risks = [part(sections, "executive_summary") for sections in (before, after)]
    said = [f"{risk.get('overall_risk_level')} ({number(risk.get('risk_score')):.0f})" for risk in risks]
    yield Fact("risk", *said)
    clean = [interval(part(part(s, "metrics"), "clean").get("accuracy")) for s in (before, after)]
    if all(figure.finite for figure in clean):
        yield Fact("clean accuracy", clean[0].percent, clean[1].percent)


def _fingerprint(sections: Section) -> str:
    return str(part(part(sections, "config"), "data").get("fingerprint", ""))
