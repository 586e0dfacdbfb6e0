"""The report as a notebook shows it: a static summary without scripts that takes the colours of the notebook."""

from .escaping import short
from .figures import number
from .html import environment
from .rows import Place, Sections, fragile
from .sentences import trust, verdict

__all__ = ["render_summary"]

ROWS, ADVICE = 6, 4


def render_summary(sections: Sections) -> str:
    """A dozen lines of HTML, everything escaped; the same sections give the same text."""
    summary = sections["executive_summary"]
    return (
        environment()
        .get_template("notebook.html")
        .render(
            title=short(sections["config"]["model"]),
            risk=short(summary["overall_risk_level"]),
            score=number(summary["risk_score"]),
            cost=number(sections["cost"]["forward_pass_equivalents"]),
            verdict=verdict(sections, short),
            rows=[_row(row) for row in fragile(sections)[:ROWS]],
            advice=sections["recommendations"][:ADVICE],
            trust=list(trust(sections, short)),
        )
    )


def _row(row: Place) -> tuple[str, str, str, str]:
    severity = f"failed: {short(row.failed)}" if row.failed else short(row.severity)
    return short(row.name), row.lost.percent, str(row.kl), severity
