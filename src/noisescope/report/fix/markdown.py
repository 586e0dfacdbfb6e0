"""A minimal fix as Markdown, fit to paste into a pull request. Texts that are not ours go through `escaping`."""

from ..escaping import code
from ..markdown import markdown_table
from ..page.table import Table
from ..rows import Sections
from . import tables
from .words import basis, headline

__all__ = ["render_markdown"]


def render_markdown(sections: Sections) -> str:
    """The plan as GitHub-flavoured Markdown; the same sections give the same text."""
    parts = (
        "## noisescope: minimal fix",
        f"**{headline(sections, code)}** {basis(sections, code)}",
        f"{code(sections['model'])}.",
        _table(tables.raised(sections)) if sections["raised"] else "",
        _table(tables.steps(sections)),
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(table: Table) -> str:
    rows = [[code(text) if text else "" for text in row] for row in table.rows]
    return markdown_table([column.label for column in table.columns], rows, rest="more in fix.json")
