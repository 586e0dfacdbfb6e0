"""A check as Markdown, fit to post on a pull request. Every text that is not ours goes through `escaping`."""

from ..escaping import code, prose
from ..markdown import fold, markdown_table
from ..page.table import Table
from ..rows import Sections
from . import tables
from .words import advice, headline, rules, subject, warning

__all__ = ["render_markdown"]

_MARKS = {"passed": "ok", "failed": "**FAILED**", "inconclusive": "unclear"}


def render_markdown(sections: Sections) -> str:
    """The check as GitHub-flavoured Markdown; the same sections give the same text."""
    head, _, rest = headline(sections, code).partition(": ")
    parts = (
        f"## noisescope check: {head}",
        f"**{rest[:1].upper()}{rest[1:]}**",
        f"{subject(sections, code)}.",
        warning(sections),
        _operators(tables.operators(sections)),
        advice(sections),
        fold("How it was judged", rules(sections)),
        fold("What was measured", _plain(tables.asked(sections))),
        fold("Checkpoints so far", _plain(tables.history(sections))),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _operators(table: Table) -> str:
    lines = [(code(row[0]), _MARKS[row[1]], *row[2:8], prose(row[8]) if row[8] else "") for row in table.rows]
    return markdown_table([column.label for column in table.columns], lines, rest="more in check.json")


def _plain(table: Table) -> str:
    lines = [[code(text) if text else "" for text in row] for row in table.rows]
    return markdown_table([column.label for column in table.columns], lines, rest="more in check.json")
