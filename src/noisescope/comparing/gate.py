"""validate_migration(): the gate of a move to other hardware. Some layers, some limits, and a yes or no.

A layer passes if the figures at its last operator are within the limits, in every stage that was traced, and in the
backward pass if that was. Where they are estimated, it is their interval that decides: passed if all of it is within,
failed otherwise. What cannot be checked is refused: a gate that has looked at nothing is not passed. A model without
blocks is one layer, `model`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, NothingMatched
from ..report.junit import Case, render_junit
from ..specs import Layer, parse_layers
from ..traces import SiteHead, Trace
from .comparing import compare
from .comparison import Comparison
from .estimating import Figure
from .judging import Judged
from .names import Names

__all__ = ["LIMITS", "Gate", "GateRow", "validate_migration"]

LIMITS = {"mape": "max", "mae": "max", "relative_error": "max", "cosine": "min", "sqnr_db": "min"}
"""metric -> whether its limit is the largest or the smallest that passes"""
MODEL = "model"
"""the layer of what is in none"""


@dataclass(frozen=True)
class GateRow:
    """One limit at one layer."""

    layer: Layer
    stage: str
    phase: str
    site: str
    metric: str
    figure: Figure
    limit: float
    passed: bool

    @property
    def sentence(self) -> str:
        """In words."""
        found = f"{self.figure.value:.4g} [{self.figure.low:.4g}, {self.figure.high:.4g}]"
        word = "at most" if LIMITS[self.metric] == "max" else "at least"
        where = "model" if self.layer == MODEL else f"layer {self.layer}"
        stage = f", {self.stage}" if self.stage == "decode" else ""
        stage += ", backward" if self.phase == "backward" else ""
        return f"{where}{stage}: {self.metric} {found}, {word} {self.limit:g} at {self.site}"


@dataclass(frozen=True, eq=False)
class Gate:
    """What the gate says."""

    rows: tuple[GateRow, ...]
    comparison: Comparison

    @property
    def passed(self) -> bool:
        """True if everything is within its limits."""
        return all(row.passed for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed."""
        return 0 if self.passed else 1

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for row in self.rows:
            yield f"{'ok    ' if row.passed else 'FAILED'} {row.sentence}"
        failed = sum(not row.passed for row in self.rows)
        yield f"{failed} of {len(self.rows)} limits exceeded" if failed else f"passed: {len(self.rows)} limits hold"

    @property
    def sections(self) -> dict[str, Any]:
        """Everything, as plain values."""
        rows = [{**asdict(row), "sentence": row.sentence} for row in self.rows]
        return {"schema": "noisescope gate", "version": 1, "passed": self.passed, "rows": rows}

    def to_junit(self) -> str:
        """JUnit XML, one test case for each limit."""
        return render_junit("validate-migration", map(_case, self.rows))


def _case(row: GateRow) -> Case:
    name = f"layer {row.layer} {row.stage} {row.phase} {row.metric}"
    return Case(name, row.site, "passed", "") if row.passed else Case(name, row.site, "failure", row.sentence)


def validate_migration(
    reference: Trace | str | Path,
    suspect: Trace | str | Path,
    *,
    layers: int | str | Iterable[int | str] | None = None,
    limits: Mapping[str, float] | None = None,
    names: Names | None = None,
) -> Gate:
    """Whether the suspect's layers are as near to the reference's as somebody asks for.

    Args:
        reference: a trace or its file, as for `compare`.
        suspect: of the same model and tokens.
        layers: which layers; None for all.
        limits: metric -> limit: `mape`, `mae` and `relative_error` at most, `cosine` and `sqnr_db` at least. None: a
            MAPE of at most 5%.
        names: as for `compare`.
    """
    asked = dict(limits) if limits is not None else {"mape": 0.05}
    if not asked or (unknown := set(asked) - set(LIMITS)):
        raise InputError(f"limits: got {sorted(unknown) if asked else 'none'}, expected some of {' '.join(LIMITS)}")
    comparison = compare(reference, suspect, names=names, fed=False)
    wanted = parse_layers(layers)
    ends = _ends(comparison.reference.sites)
    there = dict.fromkeys(layer for layer, *_ in ends)
    for layer in wanted or ():
        if layer not in there:
            raise NothingMatched(f"layers: {layer} is not in the reference's trace; there are {_told(there)}")
    chosen = {key: site for key, site in ends.items() if wanted is None or key[0] in wanted}
    if not chosen:
        raise NothingMatched(f"layers: got none, expected some of {_told(there)}")
    judged = {_key(site.site): site for site in comparison.sites}
    rows = []
    for (layer, _, _), end in chosen.items():
        if (last := judged.get(_key(end))) is None:
            raise NothingMatched(
                f"layers: the suspect's trace does not hold {end.name}, the last operator of {layer}; record it, or "
                "name other layers with --layers"
            )
        lost = any(_is_lost(site) for site in comparison.sites if _layer(site.site) == layer)
        rows += [_row(layer, last, metric, limit, lost=lost) for metric, limit in asked.items()]
    return Gate(tuple(rows), comparison)


def _ends(sites: Iterable[SiteHead]) -> dict[tuple[Layer, str, str], SiteHead]:
    """Layer, stage and phase -> the last operator there."""
    return {(_layer(site), site.stage, site.phase): site for site in sites if site.run == "free"}


def _layer(site: SiteHead) -> Layer:
    return MODEL if site.layer is None else site.layer


def _key(site: SiteHead) -> tuple[str, str]:
    return site.stage, site.name


def _is_lost(site: Judged) -> bool:
    return site.non_finite[0] != site.non_finite[1]


def _row(layer: Layer, last: Judged, metric: str, limit: float, *, lost: bool) -> GateRow:
    figure: Figure = getattr(last.metrics, metric)
    within = figure.high <= limit if LIMITS[metric] == "max" else figure.low >= limit
    return GateRow(layer, last.site.stage, last.site.phase, last.site.name, metric, figure, limit, within and not lost)


def _told(layers: Iterable[Layer]) -> str:
    blocks = [layer for layer in layers if isinstance(layer, int)]
    others = [str(layer) for layer in layers if not isinstance(layer, int)]
    return " ".join([f"{min(blocks)}-{max(blocks)}"] * bool(blocks) + others)
