"""A4 pages that fill from the top: headings, paragraphs, tables and charts, a new page when one is full.

Everything is placed by hand in points, which is fast and the same everywhere; only charts have axes. The words of a
page are one artist, in the fonts that every reader of PDF has: a matplotlib text of its own for each cell of a table,
or the outlines of each letter, would take most of the time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import INK, PALE, font_of, printable

__all__ = ["Pages"]

WIDTH, HEIGHT = 595.0, 842.0
MARGIN = 48.0
INNER = WIDTH - 2 * MARGIN
_LETTER, _WIDE_LETTER = 0.46, 0.61
"""widths in font sizes: of a letter on average, and of one in a table, where figures are wide, or of the other font"""
_TABLE = 8.0
"""font size of tables"""


@dataclass(frozen=True)
class _Face:
    """What letters look like."""

    size: float
    bold: bool = False
    as_code: bool = False


@dataclass(frozen=True)
class _Word:
    text: str
    left: float
    bottom: float
    face: _Face
    colour: str


class _Words(Artist):
    """Lines of text at their places in points; dollars in them are dollars."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[_Word] = []

    def draw(self, renderer: Any) -> None:
        """Called by the figure; what the readers' fonts lack is drawn in ours."""
        for word in self.words:
            in_theirs = word.text.isascii()
            rcParams["pdf.use14corefonts"] = in_theirs  # `paper_style` puts it back, whatever happens
            self._draw_word(renderer, word, in_theirs)
        rcParams["pdf.use14corefonts"] = False

    def _draw_word(self, renderer: Any, word: _Word, in_theirs: bool) -> None:
        context = renderer.new_gc()
        context.set_foreground(word.colour)
        font = font_of(word.face.size, bold=word.face.bold, as_code=word.face.as_code, of_reader=in_theirs)
        renderer.draw_text(context, word.left, word.bottom, word.text, font, 0)
        context.restore()


class Pages:
    """Figures of A4 size, filled one after the other."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.words: list[_Words] = []
        self.left = 0.0
        """points that are free below what is there"""
        self.break_page()

    def break_page(self) -> None:
        """The next thing starts a page, unless this one is still empty."""
        if self.left < HEIGHT - 2 * MARGIN:
            self.figures.append(Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72))
            self.words.append(_Words())
            self.figures[-1].add_artist(self.words[-1])
            self.left = HEIGHT - 2 * MARGIN

    def heading(self, text: str, *, size: float = 13) -> None:
        """A line in bold, kept together with something below it."""
        self._need(size * 2 + 60)
        self.left -= size * 0.5
        self._line(printable(text), _Face(size, bold=True))
        self.left -= size * 0.5

    def paragraph(self, text: str, *, size: float = 9, indent: float = 0, as_code: bool = False) -> None:
        """Lines as wide as the page."""
        face = _Face(size, as_code=as_code)
        wide = int((INNER - indent) / (size * (_WIDE_LETTER if as_code else _LETTER)))
        for line in wrap(printable(text, longest=2000), wide) or [""]:
            self._line(line, face, indent=indent)
        self.left -= size * 0.5

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        widths: Sequence[float],
        *,
        most: int | None = None,
    ) -> None:
        """Columns at shares of the width; what is too long for one is cut. The head is repeated on a new page."""
        wide = [INNER * width / sum(widths) for width in widths]
        bold, plain = _Face(_TABLE, bold=True), _Face(_TABLE)
        self._need(_TABLE * 5)
        self._row(head, wide, bold)
        for row in rows[:most]:
            if self.left < _TABLE * 1.42:
                self.break_page()
                self._row(head, wide, bold)
            self._row(row, wide, plain)
        self.left -= _TABLE
        if most is not None and len(rows) > most:
            self.paragraph(f"{len(rows) - most} more in report.json.", size=_TABLE)

    def chart(
        self, height: float, draw: Callable[..., None], *, below: float = 40, split: Sequence[float] = (1,)
    ) -> None:
        """Axes as wide as the page, `split` side by side, with room below for what is written at their ticks."""
        self._need(height + below + 12)
        self.left -= 12
        gap, start = (14.0, 52.0) if len(split) > 1 else (0.0, 42.0)
        room = INNER - start - (24.0 if min(split) < 1 else 0.0) - gap * (len(split) - 1)
        axes, left = [], MARGIN + start
        for share in split:
            wide = room * share / sum(split)
            axes.append(self._axes(left, MARGIN + self.left - height, wide, height))
            left += wide + gap
        draw(*axes)
        self.left -= height + below

    def numbered(self) -> list[Figure]:
        """The pages, with their numbers."""
        face = _Face(8)
        for at, words in enumerate(self.words, 1):
            words.words.append(_Word(f"{at} / {len(self.words)}", WIDTH - MARGIN - 24, 24, face, PALE))
            words.words.append(_Word("noisescope", MARGIN, 24, face, PALE))
        return self.figures

    def _need(self, points: float) -> None:
        if self.left < points:
            self.break_page()

    def _axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        return self.figures[-1].add_axes((left / WIDTH, bottom / HEIGHT, width / WIDTH, height / HEIGHT))

    def _line(self, text: str, face: _Face, *, indent: float = 0) -> None:
        self._need(face.size * 1.4)
        self.left -= face.size * 1.4
        self._write(text, MARGIN + indent, face)

    def _row(self, cells: Sequence[str], wide: Sequence[float], face: _Face) -> None:
        self.left -= _TABLE * 1.42
        for at, cell in enumerate(cells):
            fits = int(wide[at] / (_TABLE * _WIDE_LETTER))
            self._write(printable(cell, longest=max(4, fits)), MARGIN + sum(wide[:at]), face)

    def _write(self, text: str, left: float, face: _Face) -> None:
        self.words[-1].words.append(_Word(text, left, MARGIN + self.left, face, INK))
