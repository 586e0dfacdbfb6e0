"""A migration plan as Markdown, fit to paste into a pull request. Texts that are not ours go through `escaping`."""

from ..escaping import code, fence, prose
from ..markdown import markdown_table
from ..page.table import Table
from ..rows import Sections
from . import tables
from .words import basis, headline

__all__ = ["render_markdown"]


def render_markdown(sections: Sections) -> str:
    """The plan as GitHub-flavoured Markdown; the same sections give the same text."""
    steps = [f"{prose(step['why'])}:\n\n{fence(step['command'])}" for step in sections["commands"]]
    parts = (
        "## noisescope: migration plan",
        f"**{headline(sections, code)}** {basis(sections, code)}",
        f"{code(sections['model'])}, {sections['layers']} layers, sensitivity on {code(sections['data'])}.",
        _table(tables.priorities(sections)),
        _table(tables.risks(sections)),
        *(["### Validate with", *steps] if steps else []),
    )
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rows = [
        [_cell(text, is_text=column.kind == "text") for column, text in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]
    return markdown_table([column.label for column in table.columns], rows, rest="more in migration.json")


def _cell(text: str, *, is_text: bool) -> str:
    return (prose(text) if is_text else code(text)) if text else ""
