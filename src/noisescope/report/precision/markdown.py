"""A precision plan as Markdown, fit to paste into a pull request. Texts that are not ours go through `escaping`."""

from ..escaping import code, prose
from ..markdown import markdown_table
from ..page.table import Table
from ..rows import Sections
from . import tables
from .words import against, agreement, headline, mixture, refinement, remarks

__all__ = ["render_markdown"]


def render_markdown(sections: Sections) -> str:
    """The plan as GitHub-flavoured Markdown; the same sections give the same text."""
    data = sections["data"]
    parts = (
        "## noisescope: precision plan",
        f"**{headline(sections)}** {against(sections, code)}",
        f"{code(sections['model'])}; planned on {data['rows']} rows of {code(data['name'])}, verified on "
        f"{data['held_out_rows']} others.",
        _table(tables.verified(sections)),
        f"Weights: {mixture(sections, code)}.",
        _table(tables.by_layer(sections)),
        " ".join([*filter(None, [refinement(sections)]), agreement(sections, code), *map(prose, remarks(sections))]),
    )
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rows = [[code(text) if text else "" for text in row] for row in table.rows]
    heads = [prose(column.label) if column.label else "" for column in table.columns]
    return markdown_table(heads, rows, rest="more in precision.json")
