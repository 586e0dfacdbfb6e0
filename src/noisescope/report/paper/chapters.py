"""The chapters of the PDF: what each page says, in the order of reading."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..reading import Section, interval, number, part, sortable
from ..rows import (
    Place,
    advice,
    counts,
    fragile,
    modules,
    next_steps,
    operators,
    places,
    subject,
    thresholds,
    unmeasured,
    windows,
)
from ..verdict import verdict
from .pages import Pages
from .panels import draw_amplification, draw_channels, draw_map, draw_operators, draw_windows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CHAPTERS"]

SHOWN = 10
_PLACES = ("place", "KL, nats/token", "accuracy lost", "severity")
_WIDTHS = (3, 3.4, 3, 3)
_FACTS = {
    "coverage": "Coverage and observer",
    "environment": "Environment",
    "config": "Configuration",
    "cost": "Cost, in forward passes",
}


def _summary(pages: Pages, sections: Section) -> None:
    summary, cost = part(sections, "executive_summary"), part(sections, "cost")
    pages.heading(f"{summary.get('overall_risk_level', '')} risk", size=20)
    pages.paragraph(verdict(sections), size=11)
    passes = number(cost.get("forward_pass_equivalents"))
    pages.paragraph(f"{counts(sections)} {subject(sections)}; {passes:.0f} forward passes.")
    if part(sections, "map").get("cells"):
        pages.heading("Where noise hurts: layer by operator")
        pages.chart(165, lambda grid, bar: draw_map(grid, bar, sections), below=58, split=(60, 0.9))
    if rows := fragile(sections):
        pages.heading("Where it is fragile")
        pages.table(_PLACES, [_cells(row) for row in rows[:SHOWN]], _WIDTHS)
    for line in _trust(sections):
        pages.paragraph(line)
    if rows_of_advice := advice(sections):
        pages.heading("What to do")
        for row in rows_of_advice[:6]:
            pages.paragraph(f"{row.priority}   {row.component}: {row.action} ({row.issue})")


def _map(pages: Pages, sections: Section) -> None:
    cells = part(sections, "map").get("cells") or []
    if not cells:
        return
    worst = sorted(cells, key=lambda cell: sortable(number(cell["kl"]["value"])), reverse=True)[:15]
    lines = [(f"{row['layer']}", row["operator"], str(interval(row["kl"])), row["how"]) for row in worst]
    pages.break_page()
    pages.heading(f"The map: the {len(lines)} most fragile of {len(cells)} cells")
    pages.paragraph(
        "KL in nats per token that noise at one place causes. In the picture, dots were checked by injection; a cross "
        "is where prediction and injection disagree, and there the measured value stands."
    )
    pages.table(("layer", "operator", "KL, nats/token", "how"), lines, (2, 2, 3, 3))


def _windows(pages: Pages, sections: Section) -> None:
    rows = windows(sections)
    if not rows:
        return
    pages.break_page()
    pages.heading("Windows of layers")
    pages.chart(140, lambda axes: draw_windows(axes, sections), below=46)
    pages.chart(75, lambda axes: draw_amplification(axes, sections), below=48)
    lines = [(*_cells(row)[:3], str(row.amplification), _severity(row)) for row in rows]
    head = ("window", "KL, nats/token", "accuracy lost", "KL / sum of layers", "severity")
    pages.table(head, lines, (1.6, 3.4, 3, 3, 3))


def _operators(pages: Pages, sections: Section) -> None:
    rows = operators(sections)
    metrics = part(sections, "metrics")
    together = [*places(part(metrics, "together"), "together"), *places(part(metrics, "groups"), "group")]
    if not rows and not together:
        return
    pages.heading("Operators")
    if rows:
        pages.chart(max(90.0, 17.0 * min(len(rows), 20)), lambda *axes: _both(axes, sections), split=(1, 1), below=44)
        pages.table(_PLACES, [_cells(row) for row in rows], _WIDTHS)
    if together:
        pages.heading("All together, and groups of layers", size=10)
        pages.table(_PLACES, [_cells(row) for row in together], _WIDTHS)


def _both(axes: Sequence["Axes"], sections: Section) -> None:
    for each, by_kl in zip(axes, (False, True), strict=True):
        draw_operators(each, sections, by_kl=by_kl, names=not by_kl)


def _channels(pages: Pages, sections: Section) -> None:
    rows = modules(sections)
    if not rows:
        return
    pages.break_page()
    pages.heading("Outlier channels")
    pages.chart(200, lambda axes: draw_channels(axes, sections), below=64)
    lines = [
        (row.name, f"{row.outliers} of {row.channels}", f"{row.max_ratio:.1f}", f"{sum(row.persistent)}")
        for row in rows
        if row.outliers
    ]
    if lines:
        pages.table(("module", "outlier channels", "largest ratio", "persistent"), lines[:40], (5, 2, 2, 2))


def _advice(pages: Pages, sections: Section) -> None:
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


def _tables(pages: Pages, sections: Section) -> None:
    if rows := thresholds(sections):
        pages.heading("Critical noise scales")
        lines = [(row.name, str(row), row.risk, row.how) for row in rows[:30]]
        pages.table(("place", "critical noise scale", "risk", "how"), lines, (3, 3, 3, 3))
    if readings := list(_readings(sections)):
        pages.heading("Thresholds and where they come from")
        for line in readings:
            pages.paragraph(line, size=8)
    for name, title in _FACTS.items():
        if facts := list(_flat(part(sections, name))):
            pages.heading(title)
            pages.table(("what", "value"), facts, (1, 2))


def _readings(sections: Section) -> Iterator[str]:
    """Metrics that have thresholds: formula, bands, and whose they are."""
    for name, row in part(sections, "readings").items():
        bands = row.get("bands") if isinstance(row, Mapping) else None
        if isinstance(bands, (list, tuple)) and bands:
            yield f"{name} = {row.get('formula', '')}: {', '.join(map(str, bands))}. {row.get('source', '')}"


def _flat(table: Section, before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", f"{value:.6g}" if isinstance(value, float) else str(value)


def _cells(row: Place) -> tuple[str, str, str, str]:
    return row.name, str(row.kl), row.lost.percent, _severity(row)


def _severity(row: Place) -> str:
    return f"FAILED: {row.failed}" if row.failed else row.severity + ", avalanche" * row.avalanche


def _trust(sections: Section) -> Iterator[str]:
    found = part(part(sections, "map"), "agreement")
    rank = interval(found.get("spearman"))
    if rank.finite:
        yield (
            f"The map agrees with injection: Spearman {rank} over {number(found.get('checked')):.0f} checked cells, "
            f"predicted/measured {number(found.get('ratio_median')):.2f}."
        )
    if measured := [row for row in thresholds(sections) if row.how == "measured"]:
        yield "Critical noise: " + ", ".join(f"{row.name} {row}" for row in measured[:6]) + "."
    clean = part(part(sections, "metrics"), "clean")
    if clean and not clean.get("conclusive"):
        yield "Accuracy is no better than chance: accuracy lost is inconclusive, the KL ranks."
    yield from (f"FAILED: {name}: {why}" for name, why in unmeasured(sections))


CHAPTERS: tuple[Callable[[Pages, Section], None], ...] = (
    _summary,
    _map,
    _operators,
    _windows,
    _channels,
    _advice,
    _tables,
)
"""in the order of reading; each writes nothing where its level was not looked at"""
