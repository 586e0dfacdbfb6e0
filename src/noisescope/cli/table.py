"""A plain table on stdout: aligned columns, no boxes, nothing cut off when piped."""

import sys
from collections.abc import Sequence

from ..errors import printable
from .screen import write

__all__ = ["write_table"]


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Writes the rows under a head line (bold on a terminal); columns named in `right` are right-aligned."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    write(f"{bold}{line(head)}{plain}\n" + "".join(printable(line(row)) + "\n" for row in rows))
