"""`plan_migration`: which layers to move to other hardware how, and what to check first.

plan = noisescope.plan_migration("noisescope-out", "noisescope-compare")
print(plan)
plan.save("noisescope-plan")
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..report import Report
from ..report.divergence import load_comparison
from ..report.figures import Interval
from ..report.migration import render_migration, save_migration, screen_lines
from ..report.rows import Sections, layer_scale
from ..specs import Layer
from .divergence import layer_divergence, refuse_another_model
from .priorities import PRIORITIES, Priority, evidence, fallback, prioritise
from .risk import LayerRisk, rank_layers
from .validation import Naming, validation_commands

__all__ = ["MigrationPlan", "plan_migration"]


@dataclass(frozen=True, eq=False)
class MigrationPlan:
    """The layers of a model by risk, each with precision, validation, fallback and evidence."""

    sections: Mapping[str, Any] = field(repr=False)
    """everything, as plain values"""

    def layers(self, priority: int) -> list[Layer]:
        """The layers of one priority, the riskiest first."""
        return [row["layer"] for row in self.sections["rows"] if row["priority"] == priority]

    @property
    def commands(self) -> list[str]:
        """What validates the plan, in the order in which to run it."""
        return [step["command"] for step in self.sections["commands"]]

    def named(self, naming: Naming) -> "MigrationPlan":
        """The same plan with commands that call things as `naming` does."""
        groups = {one["priority"]: (one["layers"], one["max_mape"]) for one in self.sections["priorities"]}
        return MigrationPlan({**self.sections, "commands": validation_commands(groups, naming)})

    def to_json(self) -> str:
        """Strict JSON; the same plan gives the same text."""
        return render_migration(self.sections, "json")

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same plan gives the same text."""
        return render_migration(self.sections, "md")

    def to_html(self) -> str:
        """One page that holds everything it shows; the same plan gives the same text."""
        return render_migration(self.sections, "html")

    def save(self, directory: str | Path) -> Path:
        """Writes `migration.md`, `migration.html` and, last, `migration.json` into a directory; the page to open.

        The directory is made if needed, and files that are there are replaced.
        """
        return save_migration(self.sections, directory)

    def __str__(self) -> str:
        return "\n".join(screen_lines(self.sections))


def plan_migration(report: Report | str | Path, comparison: Sections | str | Path | None = None) -> MigrationPlan:
    """Which layers of a model need which precision and which check when it moves to other hardware.

    Args:
        report: of `diagnose`, or its directory or file.
        comparison: what `compare` found between the two devices (its directory, its file, or its `sections`); None if
            the other device has not run the model yet. That of another model is refused.
    """
    known = report if isinstance(report, Report) else Report.load(report)
    compared = load_comparison(comparison) if isinstance(comparison, (str, Path)) else comparison
    if compared is not None:
        refuse_another_model(known, compared)
    rows = rank_layers(known, layer_divergence(compared) if compared is not None else None)
    chosen = prioritise(rows)
    groups = [_group(one, [row.layer for row in rows if chosen[row.layer] is one]) for one in PRIORITIES]
    plan = MigrationPlan(
        {
            "schema": "noisescope migration plan",
            "version": 1,
            **_subject(known, compared),
            "priorities": groups,
            "rows": [_row(at, row, chosen[row.layer]) for at, row in enumerate(rows, 1)],
            "commands": [],
        }
    )
    return plan.named(Naming.of(known))


# --- as plain values --------------------------------------------------------------------------------------------


def _subject(report: Report, comparison: Sections | None) -> dict[str, Any]:
    sections = report.sections
    found: dict[str, Any] = {
        "model": sections["config"]["model"],
        "weights": sections["config"].get("weights"),
        "layers": sections["coverage"]["layers"],
        "data": sections["config"]["data"]["name"],
        "noise_scale": layer_scale(sections),
        "comparison": None,
    }
    if comparison is not None:
        sides = {name: comparison["traces"][name] for name in ("reference", "suspect")}
        found["comparison"] = {
            "outcome": comparison["verdict"]["outcome"],
            "fed": comparison["verdict"]["fed"],
            **{f"{name}_file": trace["file"] for name, trace in sides.items()},
            **{f"{name}_dtype": trace["environment"]["dtype"] for name, trace in sides.items()},
        }
    return found


def _group(priority: Priority, layers: Sequence[Layer]) -> dict[str, Any]:
    return {
        "priority": priority.number,
        "layers": list(layers),
        "precision": priority.precision,
        "validation": priority.validation,
        "max_mape": priority.max_mape,
        "fallback": f"raise its precision to {priority.raised}, or smooth it",
    }


def _row(rank: int, row: LayerRisk, priority: Priority) -> dict[str, Any]:
    found = row.divergence
    return {
        "rank": rank,
        "layer": row.layer,
        "priority": priority.number,
        "precision": priority.precision,
        "validation": priority.validation,
        "max_mape": priority.max_mape,
        "fallback": fallback(row, priority),
        "risk": _figure(row.risk),
        "sensitivity": _figure(row.sensitivity),
        "divergence": _figure(found.error) if found is not None else None,
        "adds_it_itself": found.own if found is not None else None,
        "mape": _figure(found.mape) if found is not None else None,
        "outlier_channels": row.outliers,
        "evidence": list(evidence(row, priority)),
    }


def _figure(found: Interval) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}
