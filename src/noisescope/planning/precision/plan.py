"""The precision plan: which weight is in which format, what that costs, and what it was verified against."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...measure.intervals import Estimate
from ...report.precision import render_precision, save_precision, screen_lines
from .choosing import Candidates, Chosen
from .refining import Refined
from .texts import Texts

if TYPE_CHECKING:
    from ..exports import Export

__all__ = ["SCHEMA", "PrecisionPlan", "Verified", "sections"]

SCHEMA, VERSION = "noisescope precision plan", 1


@dataclass(frozen=True)
class Verified:
    """A choice of formats that was run."""

    name: str
    bits: float
    predicted: float
    measured: Estimate


@dataclass(frozen=True, eq=False)
class PrecisionPlan:
    """A number format for each weight of a model's blocks."""

    sections: Mapping[str, Any] = field(repr=False)
    """everything, as plain values"""

    @property
    def formats(self) -> dict[str, str]:
        """Module path -> format, for `quantised(model, plan.formats)`; what is not there stays as it is."""
        return {row["path"]: row["format"] for row in self.sections["weights"] if row["format"] is not None}

    @property
    def avg_bits(self) -> float:
        """Of a weight, scales and kept weights counted."""
        return float(self.sections["plan"]["bits"])

    @property
    def kl(self) -> Estimate:
        """Measured on text that was not used for the plan, in nats per token."""
        return Estimate(**self.sections["verified"][0]["kl"])

    def export(self, tool: str) -> "Export":
        """The plan as another tool reads it: its `text`, `file` and `notes`; see `planning.exports`."""
        from ..exports import export

        return export(self.sections, tool)

    def to_json(self) -> str:
        """Strict JSON; the same plan gives the same text."""
        return render_precision(self.sections, "json")

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same plan gives the same text."""
        return render_precision(self.sections, "md")

    def to_html(self) -> str:
        """One page that holds everything it shows; the same plan gives the same text."""
        return render_precision(self.sections, "html")

    def save(self, directory: str | Path) -> Path:
        """Writes `precision.md`, `precision.html` and, last, `precision.json` into a directory; the page to open."""
        return save_precision(self.sections, directory)

    def __str__(self) -> str:
        return "\n".join(screen_lines(self.sections))


def sections(
    candidates: Candidates,
    chosen: Chosen,
    rows: Sequence[Verified],
    texts: Texts,
    *,
    refined: Refined | None,
    subject: Mapping[str, Any],
    asked: Mapping[str, Any],
    cost: float,
) -> dict[str, Any]:
    """Everything that is known of a plan, as plain values."""
    if not rows:
        raise InputError("plan: nothing was verified")
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **subject,
        "asked": dict(asked),
        "data": {
            "name": texts.mapped.name,
            "rows": texts.mapped.rows,
            "fingerprint": texts.mapped.fingerprint,
            "held_out_rows": texts.held_out.rows,
            "held_out_fingerprint": texts.held_out.fingerprint,
        },
        "plan": {
            "bits": chosen.bits,
            "predicted_kl": chosen.kl,
            "gap": chosen.gap,
            "counts": dict(Counter(chosen.formats.values())),
            "kept": sorted(candidates.kept),
            "left_out": list(candidates.known.map.left_out),
        },
        "weights": [_weight(place, candidates, chosen) for place in candidates.known.map.places],
        "verified": [
            {"name": row.name, "bits": row.bits, "predicted_kl": row.predicted, "kl": row.measured.as_json()}
            for row in rows
        ],
        "curve": [{"bits": point.bits, "kl": point.kl} for point in candidates.curve()],
        "uniform": [
            {"format": name, "bits": one.bits, "predicted_kl": one.kl}
            for name in candidates.formats
            for one in [candidates.uniform(name)]
        ],
        "refined": None if refined is None else _refined(refined, texts),
        "map": _map(candidates),
        "cost": cost,
    }


def _weight(place: Any, candidates: Candidates, chosen: Chosen) -> dict[str, Any]:
    name = chosen.formats.get(place.path)
    return {
        "path": place.path,
        "layer": place.layer,
        "group": place.group,
        "size": place.size,
        "axis": place.axis,
        "format": name,
        "bits": 16.0 if name is None else place.bits[name],
        "predicted_kl": {
            form: candidates.known.map.together({place.path: form}).as_json() for form in candidates.formats
        },
    }


def _refined(found: Refined, texts: Texts) -> dict[str, Any]:
    return {
        "rows": texts.stepped.rows,
        "from": None if found.start is None else found.start.as_json(),
        "steps": [
            {
                "changed": step.changed,
                "predicted": step.predicted,
                "kl": None if step.measured is None else step.measured.as_json(),
                "taken": step.taken,
            }
            for step in found.steps
        ],
    }


def _map(candidates: Candidates) -> dict[str, Any]:
    known = candidates.known
    return {
        "rows": int(known.map.sequences.max()) + 1,
        "spearman": known.agreement.as_json(),
        "ratio": known.ratio,
        "failed": list(known.failed),
        "checks": [
            {
                "layer": cell.layer,
                "format": cell.format,
                "predicted": cell.predicted.as_json(),
                "measured": cell.measured.as_json(),
                "off": cell.off,
            }
            for cell in known.cells
        ],
    }
