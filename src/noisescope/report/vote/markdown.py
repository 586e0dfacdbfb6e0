"""A vote as Markdown, fit to paste into a pull request. Every text that is not ours goes through `escaping`."""

from ..escaping import code, prose
from ..markdown import markdown_table
from ..page.table import Table
from ..rows import Sections
from . import tables
from .words import advice, headline, outcome

__all__ = ["render_markdown"]


def render_markdown(sections: Sections) -> str:
    """The vote as GitHub-flavoured Markdown; the same sections give the same text."""
    parts = (
        f"## noisescope: {prose(outcome(sections))}",
        f"**{headline(sections, code)}** {advice(sections)}".rstrip(),
        f"{code(sections['model'])}, {len(sections['traces'])} traces.",
        _table(tables.everyone(sections), named=True),
        _table(tables.pairs(sections)),
        _table(tables.environments(sections)),
    )
    return "\n\n".join(parts) + "\n"


def _table(table: Table, *, named: bool = False) -> str:
    """`named`: its headings are names of traces."""
    rows = [[code(text) if text else "" for text in row] for row in table.rows]
    heads = [code(column.label) if named and column.label else column.label for column in table.columns]
    return markdown_table(heads, rows, rest="more in vote.json")
