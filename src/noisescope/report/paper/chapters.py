"""The chapters of the PDF: what each page says, in the order of reading."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..figures import figure, number
from ..rows import (
    Place,
    Sections,
    advice,
    facts,
    fragile,
    modules,
    next_steps,
    operators,
    several,
    thresholds,
    windows,
    worst_cells,
)
from ..sentences import avalanches, counts, critical_noise, subject, trust, verdict
from .pages import Pages
from .panels import draw_amplification, draw_channels, draw_map, draw_operators, draw_windows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CHAPTERS"]

SHOWN, MOST_URGENT = 10, 6
WORST_CELLS = 8
"""as many as leave room on their page for the operators"""
_PLACES = ("place", "KL, nats/token", "accuracy lost", "severity")
_WIDTHS = (3, 3.4, 3, 3)
_FACTS = {
    "coverage": "Coverage and observer",
    "environment": "Environment",
    "config": "Configuration",
    "cost": "Cost, in forward passes",
}


def _summary(pages: Pages, sections: Sections) -> None:
    pages.heading(f"{sections['executive_summary']['overall_risk_level']} risk", size=20)
    pages.paragraph(verdict(sections), size=11)
    passes = number(sections["cost"]["forward_pass_equivalents"])
    pages.paragraph(f"{counts(sections)} {subject(sections)}; {passes} forward passes.")
    if sections["map"].get("cells"):
        pages.heading("Where noise hurts: layer by operator")
        pages.chart(165, lambda grid, bar: draw_map(grid, bar, sections), below=58, split=(60, 0.9))
    if rows := fragile(sections):
        pages.heading("Where it is fragile")
        pages.table(_PLACES, [_cells(row) for row in rows[:SHOWN]], _WIDTHS)
    for line in filter(None, (*trust(sections), critical_noise(sections, most=6))):
        pages.paragraph(line)
    if todo := advice(sections):
        pages.heading("What to do")
        for row in todo[:MOST_URGENT]:
            pages.paragraph(f"{row.priority}   {row.component}: {row.action} ({row.issue})")
        if len(todo) > MOST_URGENT:
            pages.paragraph(f"{len(todo) - MOST_URGENT} more below, all with their evidence.")


def _map(pages: Pages, sections: Sections) -> None:
    worst = worst_cells(sections)
    if not worst:
        return
    lines = [(f"{row['layer']}", row["operator"], figure(row["kl"]), row["how"]) for row in worst[:WORST_CELLS]]
    pages.break_page()
    pages.heading(f"The map: the {len(lines)} most fragile of {len(worst)} cells")
    pages.paragraph(
        "KL in nats per token that noise at one place causes. In the picture, dots were checked by injection; a cross "
        "is where prediction and injection disagree, and there the measured value stands, or where it is not finite."
    )
    pages.table(("layer", "operator", "KL, nats/token", "how"), lines, (2, 2, 3, 3))
    panel = sections["metrics"].get("agreement") or {}
    if proxies := panel.get("proxies"):
        pages.heading("Do the usual proxies foretell how sensitive a layer is?", size=10)
        found = [(row["name"], row["expected"], figure(row["spearman"]), row["verdict"]) for row in proxies]
        pages.table(("proxy", "expected", "Spearman", "verdict"), found, (2, 3, 3, 3))


def _windows(pages: Pages, sections: Sections) -> None:
    rows = windows(sections)
    if not rows:
        return
    pages.break_page()
    pages.heading("Windows of layers")
    pages.paragraph(avalanches(sections))
    pages.chart(140, lambda axes: draw_windows(axes, sections), below=46)
    pages.chart(75, lambda axes: draw_amplification(axes, sections), below=48)
    lines = [(*_cells(row)[:3], str(row.amplification), _severity(row)) for row in rows]
    head = ("window", "KL, nats/token", "accuracy lost", "KL / sum of layers", "severity")
    pages.table(head, lines, (1.6, 3.4, 3, 3, 3))


def _operators(pages: Pages, sections: Sections) -> None:
    rows, together = operators(sections), several(sections)
    if not rows and not together:
        return
    pages.heading("Operators")
    if rows:
        pages.chart(max(90.0, 17.0 * min(len(rows), 20)), lambda *axes: _both(axes, sections), split=(1, 1), below=44)
        pages.table(_PLACES, [_cells(row) for row in rows], _WIDTHS)
    if together:
        pages.heading("All together, and groups of layers", size=10)
        pages.table(_PLACES, [_cells(row) for row in together], _WIDTHS)


def _both(axes: Sequence["Axes"], sections: Sections) -> None:
    for each, by_kl in zip(axes, (False, True), strict=True):
        draw_operators(each, sections, by_kl=by_kl, names=not by_kl)


def _channels(pages: Pages, sections: Sections) -> None:
    rows = modules(sections)
    if not rows:
        return
    pages.break_page()
    pages.heading("Outlier channels")
    pages.chart(200, lambda axes: draw_channels(axes, sections), below=64)
    lines = [
        (row.name, f"{row.outliers} of {row.channels}", number(row.max_ratio), f"{sum(row.persistent)}")
        for row in rows
        if row.outliers
    ]
    if lines:
        pages.table(("module", "outlier channels", "largest ratio", "persistent"), lines, (5, 2, 2, 2), most=40)


def _advice(pages: Pages, sections: Sections) -> None:
    rows, steps = advice(sections), next_steps(sections)
    if not rows and not steps:
        return
    pages.heading("What to do, with the evidence")
    for row in rows:
        pages.paragraph(f"{row.priority}   {row.component}: {row.action}", size=10)
        pages.paragraph(f"{row.issue}; {row.evidence}", size=8.5, indent=14)
        if row.command:
            pages.paragraph(row.command, size=8, indent=14, as_code=True)
    if steps:
        pages.heading("Next steps")
    for command, why in steps:
        pages.paragraph(why)
        pages.paragraph(command, size=8, indent=14, as_code=True)


def _tables(pages: Pages, sections: Sections) -> None:
    if rows := thresholds(sections):
        pages.heading("Critical noise scales")
        lines = [(row.name, str(row), row.risk, row.how) for row in rows]
        pages.table(("place", "critical noise scale", "risk", "how"), lines, (3, 3, 3, 3), most=40)
    if readings := list(_readings(sections)):
        pages.heading("Thresholds and where they come from")
        for line in readings:
            pages.paragraph(line, size=8)
    for name, title in _FACTS.items():
        if found := list(facts(sections[name])):
            pages.heading(title)
            pages.table(("what", "value"), found, (1, 2))


def _readings(sections: Sections) -> Iterator[str]:
    """Metrics that have thresholds: formula, bands, and whose they are."""
    for name, row in sections["readings"].items():
        if row["bands"]:
            yield f"{name} = {row['formula']}: {', '.join(row['bands'])}. {row['source']}"


def _cells(row: Place) -> tuple[str, str, str, str]:
    return row.name, str(row.kl), row.lost.percent, _severity(row)


def _severity(row: Place) -> str:
    return f"FAILED: {row.failed}" if row.failed else row.severity + ", avalanche" * row.avalanche


CHAPTERS: tuple[Callable[[Pages, Sections], None], ...] = (
    _summary,
    _map,
    _operators,
    _windows,
    _channels,
    _advice,
    _tables,
)
"""in the order of reading; each writes nothing where its level was not looked at"""
