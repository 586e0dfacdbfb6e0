"""A verdict as a notebook shows it: a few lines without scripts that take the colours of the notebook."""

from ..escaping import short
from ..figures import number
from ..rows import Sections
from .words import headline, outcome, truth_line

__all__ = ["render_verdict_summary"]

SUSPECTS = 6


def render_verdict_summary(sections: Sections) -> str:
    """A dozen lines of HTML, everything escaped; the same sections give the same text."""
    from ..html import environment

    return (
        environment()
        .get_template("verdict_notebook.html")
        .render(
            title=short(sections["config"]["model"]),
            outcome=short(outcome(sections)),
            cost=number(sections["cost"]["forward_pass_equivalents"]),
            headline=headline(sections, short),
            suspects=[(short(row["where"]), short(row["kind"])) for row in sections["suspects"][:SUSPECTS]],
            methods=[(short(row["method"]), short(row["sentence"])) for row in sections["evidence"]],
            truth=[truth_line(row, short) for row in sections["truth"]],
        )
    )
