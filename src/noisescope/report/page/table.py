"""A table of a page: written by the template, or by a script into a layer's panel, from the same values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..escaping import visible

__all__ = ["Column", "Kind", "Table"]

Kind: TypeAlias = Literal["text", "name", "run", "figure", "word", "lines"]
"""how the cells of a column look: running text, text on one line, a name in code, figures flush right, a reading such
as HIGH, or a list"""


@dataclass(frozen=True)
class Column:
    """A heading and how what is below it looks."""

    label: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """Rows of text. A row with fewer cells than columns ends in a remark, which spans the rest."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, caption: str, columns: Mapping[str, Kind], rows: Iterable[Sequence[str]]) -> "Table":
        """From headings with their kinds, in order."""
        heads = tuple(Column(label, kind) for label, kind in columns.items())
        return cls(caption, heads, tuple(tuple(map(visible, row)) for row in rows))

    def split(self, count: int) -> tuple["Table", "Table"]:
        """The first rows, and the rest."""
        return Table(self.caption, self.columns, self.rows[:count]), Table(
            f"{self.caption}, the rest", self.columns, self.rows[count:]
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values, for the scripts."""
        return {
            "caption": self.caption,
            "columns": [[column.label, column.kind] for column in self.columns],
            "rows": [list(row) for row in self.rows],
        }
