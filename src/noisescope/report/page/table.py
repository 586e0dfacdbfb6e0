"""A table of a page, as the template writes it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Column", "Kind", "Table"]

Kind: TypeAlias = Literal["text", "name", "path", "run", "figure", "word", "lines", "percent"]
"""how the cells of a column look: running text, a name in code, one that may break after its dots, text on one line,
figures flush right, a reading such as HIGH, a list, or a percentage as a bar"""


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
        return cls(caption, heads, tuple(map(tuple, rows)))

    def split(self, count: int) -> tuple["Table", "Table"]:
        """The first rows, and the rest."""
        return Table(self.caption, self.columns, self.rows[:count]), Table(
            f"{self.caption}, the rest", self.columns, self.rows[count:]
        )
