"""How figures look on paper: one font, colours that everyone can tell apart, and text that is only ever text.

matplotlib reads its settings from the user's files and from whoever changed them before: inside `paper_style` they are
ours, afterwards theirs again. Names from models never become mathematics ($...$), and characters that the font lacks
become a replacement mark in place of a warning.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from ..escaping import visible
from ..figures import in_ascii

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

__all__ = [
    "ACCENT",
    "INK",
    "PALE",
    "PALETTE",
    "drawable",
    "font_of",
    "paper_style",
    "printable",
    "risk_colour",
    "severity_colour",
]

INK = "#222222"
PALE = "#8a8a8a"
ACCENT = "#D55E00"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, told apart with every kind of colour blindness, and in grey"""

_SEVERITIES = {"CRITICAL": ACCENT, "HIGH": "#E69F00", "MODERATE": "#56B4E9", "LOW": "#0072B2"}
_FONT = "DejaVu Sans"
"""comes with matplotlib, so that every machine draws the same"""
_OURS = {
    "font.family": _FONT,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # a fixed place: looking for a free one costs a third of the time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.compression": 6,
}
_NOT_LOOKS = ("backend", "interactive", "toolbar", "timezone", "webagg", "tk.", "macosx", "savefig.dir", "docstring")


@contextmanager
def paper_style() -> Iterator[None]:
    """matplotlib's own looks and ours, whatever the user's settings; afterwards these are as they were."""
    from matplotlib import rc_context, rcParamsDefault

    looks: dict[Any, Any] = {key: value for key, value in rcParamsDefault.items() if not key.startswith(_NOT_LOOKS)}
    looks |= _OURS
    with rc_context(looks):
        yield


def printable(text: Any, *, longest: int = 160) -> str:
    """One line of characters that the font has."""
    known = _glyphs()
    line = in_ascii(visible(text, longest=longest))
    return "".join(character if ord(character) in known else "\ufffd" for character in line)


@cache
def font_of(size: float, *, bold: bool, as_code: bool, of_reader: bool) -> "FontProperties":
    """A font of the readers of PDF, or of ours."""
    from matplotlib.font_manager import FontProperties

    if of_reader:
        return FontProperties(
            size=size, family="Courier" if as_code else "Helvetica", weight="bold" if bold else "medium"
        )
    return FontProperties(size=size, family=_FONT + " Mono" * as_code, weight="bold" if bold else "normal")


def severity_colour(severity: str) -> str:
    """The colour of a severity; grey for what is none."""
    return _SEVERITIES.get(severity, PALE)


def risk_colour(risk: str) -> str:
    """The colour of the whole verdict."""
    return {"HIGH": ACCENT, "MODERATE": "#B07800", "LOW": PALETTE[2]}.get(risk, INK)


def drawable(value: float, *, log: bool = False) -> float:
    """The value within what an axis can show; NaN, which is not drawn, for what has no place on it."""
    if not isfinite(value) or (log and value <= 0):
        return nan
    return min(max(value, 1e-15 if log else -1e9), 1e9)


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(_FONT)).get_charmap())
