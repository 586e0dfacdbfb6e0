"""The trend of a model over its checkpoints: what noise on its most fragile operators costs, drawn.

An entry is what a history keeps of a check: label, outcome, and operator -> figure with the ends of its interval.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ..paper.style import ACCENT, INK, PALE, PALETTE, paper_style, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_trend", "render_trend"]

MOST = 6
"""operators that are drawn in colour; the others are pale lines"""
DPI = 120


def draw_trend(entries: Sequence[Mapping[str, Any]], limit: float | None = None) -> "Figure":
    """A figure: checkpoints across, accuracy lost to noise on each operator upwards, with 95% intervals."""
    from matplotlib.figure import Figure

    with paper_style():
        figure = Figure(figsize=(max(7.0, min(16.0, 3.0 + 0.6 * len(entries))), 4.2), dpi=DPI, layout="constrained")
        axes = figure.subplots()
        names = dict.fromkeys(name for entry in entries for name in entry["degradation"])
        ranked = sorted(names, key=lambda name: -_largest(entries, name))
        for at, name in reversed([*enumerate(ranked)]):
            _line(axes, entries, name, PALETTE[at % len(PALETTE)] if at < MOST else None)
        _verdicts(axes, entries)
        if limit is not None:
            axes.axhline(100 * limit, color=INK, linewidth=1, linestyle="--", label=f"limit, {limit:.1%}")
        axes.axhline(0, color=PALE, linewidth=0.6)
        axes.set_xticks(range(len(entries)), [printable(entry["label"], longest=24) for entry in entries])
        if len(entries) > 6:
            axes.tick_params(axis="x", labelrotation=45)
        axes.set_ylabel("accuracy lost to noise, %")
        axes.set_title("What noise costs, by operator and checkpoint")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def render_trend(entries: Sequence[Mapping[str, Any]], limit: float | None = None) -> bytes:
    """The same as PNG, byte for byte the same each time."""
    out = BytesIO()
    with paper_style():
        draw_trend(entries, limit).savefig(out, format="png", metadata={"Software": "noisescope"})
    return out.getvalue()


def _largest(entries: Sequence[Mapping[str, Any]], name: str) -> float:
    return max(float(entry["degradation"][name][0]) for entry in entries if name in entry["degradation"])


def _line(axes: "Axes", entries: Sequence[Mapping[str, Any]], name: str, colour: str | None) -> None:
    known = [(at, *entry["degradation"][name]) for at, entry in enumerate(entries) if name in entry["degradation"]]
    at, value, low, high = ([*column] for column in zip(*known, strict=True))
    percent = [100 * part for part in value]
    if colour is None:
        axes.plot(at, percent, color=PALE, linewidth=0.7, alpha=0.6)
        return
    errors = [[100 * (v - end) for v, end in zip(value, low, strict=True)]]
    errors.append([100 * (end - v) for v, end in zip(value, high, strict=True)])
    label = printable(name, longest=24)
    axes.errorbar(at, percent, errors, color=colour, linewidth=1.4, elinewidth=0.8, capsize=2, label=label)


def _verdicts(axes: "Axes", entries: Sequence[Mapping[str, Any]]) -> None:
    """A sign at the foot of each checkpoint that did not pass."""
    for outcome, marker, colour in (("failed", "X", ACCENT), ("inconclusive", "D", INK)):
        found = [at for at, entry in enumerate(entries) if entry["outcome"] == outcome]
        if found:
            foot = axes.get_xaxis_transform()
            axes.scatter(found, [0.03] * len(found), transform=foot, marker=marker, s=50, color=colour, label=outcome)
