"""A report as a picture for a slide (PNG) and as pages for print (PDF), byte for byte the same each time.

Figures are made directly, never through pyplot, so that nothing of the caller's plots is touched and no window opens.
"""

from io import BytesIO
from typing import TYPE_CHECKING

from ..rows import Sections
from ..sentences import counts, subject, verdict
from .chapters import CHAPTERS
from .pages import Pages
from .panels import draw_map, draw_operators, draw_windows
from .style import INK, PALE, paper_style, printable, risk_colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["render_pdf", "render_png"]

DPI = 150


def render_png(sections: Sections) -> bytes:
    """One picture: the verdict, the map, the windows, the operators."""
    from matplotlib.figure import Figure

    out = BytesIO()
    with paper_style():
        figure = Figure(figsize=(12.8, 7.2), dpi=DPI)
        _headline(figure, sections)
        _panels(figure, sections)
        figure.savefig(out, format="png", metadata={"Software": "noisescope"})
    return out.getvalue()


def render_pdf(sections: Sections) -> bytes:
    """A4 pages: summary, map, windows, operators, channels, recommendations, tables."""
    from matplotlib.backends.backend_pdf import PdfPages

    out = BytesIO()
    about = {"Title": "noisescope report", "Creator": "noisescope", "Producer": "noisescope", "CreationDate": None}
    with paper_style():
        pages = Pages()
        for chapter in CHAPTERS:
            chapter(pages, sections)
        with PdfPages(out, metadata=about) as pdf:
            for figure in pages.numbered():
                pdf.savefig(figure)
    return out.getvalue()


def _headline(figure: "Figure", sections: Sections) -> None:
    risk = printable(sections["executive_summary"]["overall_risk_level"], longest=20)
    figure.text(0.03, 0.93, f"{risk} risk", size=21, weight="bold", color=risk_colour(risk), parse_math=False)
    for left, bottom, text, size, colour in (
        (0.03, 0.888, verdict(sections), 11.5, INK),
        (0.03, 0.855, counts(sections), 9.5, PALE),
        (0.97, 0.945, subject(sections), 9, PALE),
        (0.97, 0.92, "noisescope", 9, PALE),
    ):
        shown, side = printable(text, longest=145), "left" if left < 0.5 else "right"
        figure.text(left, bottom, shown, size=size, color=colour, ha=side, parse_math=False)


def _panels(figure: "Figure", sections: Sections) -> None:
    layers, bar = figure.add_axes((0.085, 0.5, 0.845, 0.28)), figure.add_axes((0.942, 0.5, 0.011, 0.26))
    draw_map(layers, bar, sections)
    windows = figure.add_axes((0.065, 0.105, 0.455, 0.255))
    draw_windows(windows, sections)
    lost, kl = figure.add_axes((0.615, 0.105, 0.175, 0.255)), figure.add_axes((0.805, 0.105, 0.175, 0.255))
    draw_operators(lost, sections, by_kl=False)
    draw_operators(kl, sections, by_kl=True, names=False)
    titles = {
        (0.03, 0.798): "Where noise hurts: layer by operator (dots: checked by injection)",
        (0.03, 0.38): "Windows of layers, 95% intervals",
        (0.545, 0.38): "Operators in all layers, 95% intervals (colour: severity)",
    }
    for (left, bottom), title in titles.items():
        figure.text(left, bottom, title, size=10.5, weight="bold")
