"""The report as a notebook shows it: a static summary without scripts that takes the colours of the notebook."""

from collections.abc import Mapping
from typing import Any

from .figures import NOTHING, figure, number, share
from .html import environment
from .verdict import fragile_rows, verdict

__all__ = ["render_summary"]

ROWS, ADVICE = 6, 4


def render_summary(sections: Mapping[str, Any]) -> str:
    """A dozen lines of HTML, everything escaped; the same sections give the same text."""
    summary = sections["executive_summary"]
    return (
        environment()
        .get_template("notebook.html")
        .render(
            title=str(sections["config"].get("model", "")),
            risk=str(summary["overall_risk_level"]),
            score=number(summary["risk_score"]),
            cost=number(sections["cost"]["forward_pass_equivalents"]),
            verdict=verdict(sections),
            rows=[_row(name, row) for name, row in fragile_rows(sections)[:ROWS]],
            advice=sections["recommendations"][:ADVICE],
            agreement=_agreement(sections["map"].get("agreement") or {}),
        )
    )


def _row(name: str, row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    if "failed" in row:
        return name, NOTHING, NOTHING, f"failed: {row['failed']}"
    return name, share(row["degradation"], row["degradation_interval"]), figure(row["kl"]), row["severity"]


def _agreement(found: Mapping[str, Any]) -> str:
    if not found.get("spearman"):
        return ""
    return f"map and injection agree: Spearman {figure(found['spearman'])} over {found['checked']} checked cells"
