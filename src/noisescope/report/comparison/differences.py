"""What got better and what got worse from one report to another, with significance.

    Differences.between(before, after)      from the sections of two reports
    found.said_first                        ["differs: dtype float32 -> bfloat16", "asked alike, of the same data"]
    found.verdict                           "3 rows significantly worse, 1 better, 47 not distinguishable; map: ..."

Rows that are in both are compared (see `families`). In each family the chance of any false alarm is at most 5% (Holm);
see `significance` for the test. Levels, which were injected, and the map are counted apart: they tell of one change
twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log, nan
from typing import Any

from ..figures import Interval, number
from ..rows import Place, Sections
from .facts import Fact, Facts, refuse_other_structure
from .families import FAMILIES, PREDICTED, Family
from .significance import LEVEL, UNTESTED, Shift, holm, shift

__all__ = ["Differences", "RowDifference"]

VERDICTS = ("worse", "mixed", "better", "not distinguishable", "untested")
"""what a row can be, in the order of the rows"""
SIGNIFICANT = ("worse", "mixed", "better")
_ON_MAP = (("layers", "layer", True), ("cells", "cell", True), ("checked cells", "cell", False))
"""name, kind and whether predicted, of what is the map's"""
_ADJUSTED = (
    f"p is adjusted for all rows of its kind: at most {LEVEL:.0%} chance of any false alarm among them (Holm). "
    "Intervals are 95%, for a single row: one can leave out no change where p, adjusted, does not."
)
_ASKED_DIFFERENTLY = "The runs were asked differently: a difference need not be one of the models."
_SAME_DATA = (
    "Both runs saw the same sequences: their difference varies less than the test assumes, which finds fewer for it."
)
_OTHER_DATA = "The runs saw different data: a difference may be one of the data."
_FOLLOWS = (
    "What the map predicts for {kinds} follows from the noise and is left out: only what was injected is compared."
)


@dataclass(frozen=True)
class RowDifference:
    """One place in both reports: how its KL changed, and its loss of accuracy."""

    kind: str
    name: str
    predicted: bool
    """read off the map, not injected"""
    before: Place
    after: Place
    kl: Shift
    lost: Shift
    p: float
    """of the more certain of the two, adjusted for its family"""
    verdict: str
    """one of VERDICTS"""

    @property
    def on_map(self) -> bool:
        """Whether it is the map's: a prediction, or a cell that was injected to check one."""
        return self.predicted or self.kind == "cell"

    @property
    def significant(self) -> bool:
        """Whether the change is more than chance."""
        return self.verdict in SIGNIFICANT

    @property
    def effect(self) -> float:
        """How large the change is, for sorting: that of the KL in logarithms, in which zero is far away."""
        if not isfinite(self.kl.effect):
            return 0.0
        if self.kl.kind == "difference":
            return inf if self.kl.effect else 0.0
        return abs(log(self.kl.effect)) if self.kl.effect > 0 else inf


@dataclass(frozen=True)
class Differences:
    """Two reports side by side."""

    facts: Facts
    rows: tuple[RowDifference, ...]
    """significant ones first, each by effect"""
    only_before: Mapping[str, tuple[str, ...]]
    only_after: Mapping[str, tuple[str, ...]]
    headline: tuple[Fact, ...]
    """risk and clean accuracy"""
    models: tuple[str, str]
    same_data: bool
    remarks: tuple[str, ...]
    """on what was left out"""

    @classmethod
    def between(cls, before: Sections, after: Sections) -> "Differences":
        """Compares the sections of two reports; an error where their models are built differently."""
        refuse_other_structure(before, after)
        families = [Family.of(kind, before, after) for kind in FAMILIES]
        rows = [row for family in families for row in _compare(family)]
        return cls(
            facts=Facts.between(before, after),
            rows=tuple(sorted(rows, key=lambda row: (VERDICTS.index(row.verdict), -row.effect))),
            only_before={family.kind: family.only_before for family in families if family.only_before},
            only_after={family.kind: family.only_after for family in families if family.only_after},
            headline=tuple(_headline(before, after)),
            models=(_model(before), _model(after)),
            same_data=_fingerprint(before) == _fingerprint(after) != "",
            remarks=tuple(_left_out(families, before, after)),
        )

    @property
    def levels(self) -> list[RowDifference]:
        """Operators, windows, groups and layers that were injected in both runs."""
        return [row for row in self.rows if not row.on_map]

    @property
    def on_map(self) -> dict[str, list[RowDifference]]:
        """What is the map's, by what it is: layers, which are sums of cells, cells, or cells that were checked."""
        found: dict[str, list[RowDifference]] = {}
        for name, kind, predicted in _ON_MAP:
            if rows := [row for row in self.rows if row.on_map and (row.kind, row.predicted) == (kind, predicted)]:
                found[name] = rows
        return found

    @property
    def said_first(self) -> list[str]:
        """What differs between the runs and what was asked differently, before any figure."""
        return self.facts.said_first

    @property
    def verdict(self) -> str:
        """One sentence: of the levels, then of the map."""
        if not self.rows:
            return "nothing to compare: no row is in both reports"
        said = [_counted(self.levels)] if self.levels else []
        mapped = [_counted_on_map(name, rows) for name, rows in self.on_map.items()]
        return "; ".join([*said, *([f"map: {', '.join(mapped)}"] if mapped else [])])

    @property
    def caveats(self) -> list[str]:
        """How far this can be trusted."""
        asked = [_ASKED_DIFFERENTLY] if self.facts.asked else []
        return [*asked, *self.remarks, _ADJUSTED, _SAME_DATA if self.same_data else _OTHER_DATA]

    def as_json(self) -> dict[str, Any]:
        """Plain values; nothing of where the files were."""
        return {
            "said_first": self.said_first,
            "verdict": self.verdict,
            "level": LEVEL,
            "counts": {
                how: {verdict: count(rows, verdict) for verdict in VERDICTS}
                for how, rows in {"levels": self.levels, **self.on_map}.items()
            },
            "compared": [vars(fact) for fact in self.facts.compared],
            "asked": [vars(fact) for fact in self.facts.asked],
            "other": [vars(fact) for fact in self.facts.other],
            "headline": [vars(fact) for fact in self.headline],
            "rows": [_row_json(row) for row in self.rows],
            "only_before": {kind: list(names) for kind, names in self.only_before.items()},
            "only_after": {kind: list(names) for kind, names in self.only_after.items()},
            "caveats": self.caveats,
        }


def count(rows: Sequence[RowDifference], verdict: str) -> int:
    """How many rows are that."""
    return sum(row.verdict == verdict for row in rows)


# --- rows -------------------------------------------------------------------------------------------------------


def _compare(family: Family) -> Iterator[RowDifference]:
    pairs = [(before.place, after.place) for before, after in family.pairs]
    kl = [shift(before.kl, after.kl, positive=True) for before, after in pairs]
    lost = [_lost(before, after) for before, after in pairs]
    adjusted = holm([change.p for change in (*kl, *lost)])
    for at, (row, _) in enumerate(family.pairs):
        before, after = pairs[at]
        ps = adjusted[at], adjusted[len(pairs) + at]
        verdict = _verdict(before, after, ((kl[at], ps[0]), (lost[at], ps[1])))
        p = min((p for p in ps if isfinite(p)), default=nan)
        yield RowDifference(family.kind, before.name, row.predicted, before, after, kl[at], lost[at], p, verdict)


def _lost(before: Place, after: Place) -> Shift:
    if not before.conclusive or not after.conclusive:
        return UNTESTED
    return shift(before.lost, after.lost, positive=False)


def _verdict(before: Place, after: Place, changes: tuple[tuple[Shift, float], ...]) -> str:
    if before.failed or after.failed:  # no figure, and no doubt where one of them made the output non-finite
        if before.broken == after.broken or (before.failed and after.failed):
            return "untested"
        return "worse" if after.broken else "better"
    found = {"worse" if change.rises else "better" for change, p in changes if p <= LEVEL}
    if not found:
        return "not distinguishable" if any(isfinite(p) for _, p in changes) else "untested"
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
        "how": "predicted" if row.predicted else "injected",
        "verdict": row.verdict,
        "p_adjusted": row.p,
        "kl_change": vars(row.kl),
        "accuracy_lost_change": vars(row.lost),
        "before": side(row.before),
        "after": side(row.after),
    }


# --- sentences --------------------------------------------------------------------------------------------------


def _counted(rows: Sequence[RowDifference]) -> str:
    worse = count(rows, "worse")
    said = f"{worse} row{'s' * (worse != 1)} significantly worse, {count(rows, 'better')} better"
    said += f", {count(rows, 'not distinguishable')} not distinguishable"
    for verdict in ("mixed", "untested"):
        said += f", {count(rows, verdict)} {verdict}" if count(rows, verdict) else ""
    return said


def _counted_on_map(name: str, rows: Sequence[RowDifference]) -> str:
    return f"{count(rows, 'worse')} worse and {count(rows, 'better')} better of {len(rows)} {name}"


def _left_out(families: Sequence[Family], before: Sections, after: Sections) -> Iterator[str]:
    """That predictions were not compared; and by which factor the scale alone changes a KL, where it is that alone."""
    others = [f"{family.kind}s" for family in families if family.kind in PREDICTED and not family.asked_alike]
    if not others or not all(sections["map"].get("cells") for sections in (before, after)):
        return
    yield _FOLLOWS.format(kinds=" and ".join(others))
    one, other = (sections["config"]["noise_scale"] for sections in (before, after))
    types = {sections["config"].get("error_type") for sections in (before, after)}
    if len(types) == 1 and one != other and one > 0 and other > 0:
        factor = number((other / one) ** 2)
        yield (
            f"To second order a KL changes with the square of the noise scale: by {factor} from {one:g} to "
            f"{other:g}, whatever the model."
        )


def _headline(before: Sections, after: Sections) -> Iterator[Fact]:
    risks = [sections["executive_summary"] for sections in (before, after)]
    said = [f"{risk['overall_risk_level']} ({number(risk['risk_score'])})" for risk in risks]
    yield Fact("risk", *said)
    clean = [Interval.of((sections["metrics"].get("clean") or {}).get("accuracy")) for sections in (before, after)]
    if all(figure.finite for figure in clean):
        yield Fact("clean accuracy", clean[0].percent, clean[1].percent)


def _model(sections: Sections) -> str:
    return str(sections["config"]["model"])


def _fingerprint(sections: Sections) -> str:
    return str(sections["config"]["data"]["fingerprint"])
