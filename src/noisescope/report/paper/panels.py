"""The pictures of a report, each drawn on axes that it is given: the map, the windows, the operators, the channels.

Nothing here makes a figure or writes a file. A panel without anything to show says so and stays empty.
"""

from collections.abc import Iterable, Sequence
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layers import map_layers
from ..rows import Place, Sections, modules, operators, windows
from .style import ACCENT, INK, PALE, PALETTE, drawable, printable, severity_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_amplification", "draw_channels", "draw_map", "draw_operators", "draw_windows", "empty"]

_RANGE = 1e5
"""the map shows so many times less than its largest cell; below, all is equally unimportant"""
_LARGEST = 1e30


def empty(axes: "Axes", why: str) -> None:
    """Axes that only say why there is nothing."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", color=PALE, transform=axes.transAxes)


# --- the map ----------------------------------------------------------------------------------------------------


def draw_map(axes: "Axes", bar: "Axes", sections: Sections) -> None:
    """Layers across, operators down, colour the logarithm of the KL; a dot where it was checked by injection."""
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import LogNorm

    cells = sections["map"].get("cells", ())
    seen = [min(cell["kl"]["value"], _LARGEST) for cell in cells if _positive(cell["kl"]["value"])]
    if not seen:
        bar.set_axis_off()
        return empty(axes, "no cell of the map is finite" if cells else "no map")
    least, most = max(min(seen), max(seen) / _RANGE), max(seen)
    drawn = [_shade(cell["kl"]["value"], least, most) for cell in cells]
    columns, rows = {layer: at for at, layer in enumerate(map_layers(sections))}, _operators(cells, drawn)
    grid = np.full((len(rows), len(columns)), nan)
    for cell, value in zip(cells, drawn, strict=True):
        grid[rows[cell["operator"]], columns[cell["layer"]]] = value
    norm = LogNorm(least, most * (1 + 1e-9), clip=True)
    image = axes.imshow(grid, norm=norm, cmap="magma_r", aspect="auto", interpolation="nearest")
    _mark_checked(axes, cells, columns, rows)
    _name_columns(axes, columns)
    _ticks(axes.yaxis, list(rows), most=40)
    axes.set_xlabel("layer")
    axes.xaxis.set_label_coords(0.5, -0.12)  # beside the upright names, not below the longest
    axes.set_facecolor("0.95")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    Colorbar(bar, image)
    _plain_log(bar.yaxis)
    bar.set_title("KL", fontsize=8, loc="center", fontweight="normal")
    return None


def _positive(value: float) -> bool:
    return isfinite(value) and value > 0


def _shade(value: float, least: float, most: float) -> float:
    """What a cell is drawn as: nothing is as bad as what is not finite."""
    return min(max(value, least), most) if isfinite(value) else most


def _name_columns(axes: "Axes", columns: Iterable[Any]) -> None:
    """Names outside the blocks in full, upright; numbers of blocks, as many as there is room for."""
    inside = [name for name in columns if not isinstance(name, str)]
    shown = inside[:: max(1, -(-len(inside) // 16))]
    found = [(at, name) for at, name in enumerate(columns) if isinstance(name, str) or name in shown]
    labels = [printable(name, longest=12) for _, name in found]
    axes.set_xticks([at for at, _ in found], labels=labels, parse_math=False)
    for label, (_, name) in zip(axes.get_xticklabels(), found, strict=True):
        label.set_rotation(90 if isinstance(name, str) else 0)


def _operators(cells: Sequence[Sections], values: Sequence[float]) -> dict[str, int]:
    """Operators, the one with the largest cell on top."""
    most: dict[str, float] = {}
    for cell, value in zip(cells, values, strict=True):
        most[cell["operator"]] = max(most.get(cell["operator"], 0.0), value)
    return {name: at for at, name in enumerate(sorted(most, key=lambda name: -most[name]))}


def _mark_checked(axes: "Axes", cells: Sequence[Sections], columns: dict[Any, int], rows: dict[str, int]) -> None:
    """Dots where injection agrees; crosses where it does not, or where there is no finite figure."""
    crossed = [cell for cell in cells if cell["disagrees"] or not isfinite(cell["kl"]["value"])]
    dotted = [cell for cell in cells if cell["measured"] and cell not in crossed]
    for found, marker, colour in ((dotted, "o", "white"), (crossed, "X", ACCENT)):
        across, down = [columns[cell["layer"]] for cell in found], [rows[cell["operator"]] for cell in found]
        axes.scatter(across, down, s=16, marker=marker, c=colour, edgecolors=INK, linewidths=0.6)


# --- windows ----------------------------------------------------------------------------------------------------


def draw_windows(axes: "Axes", sections: Sections) -> None:
    """Accuracy lost by window, avalanche points in another colour; the KL where accuracy says nothing."""
    rows = windows(sections)
    if not rows:
        return empty(axes, "windows were not looked at")
    by_kl = not any(row.conclusive for row in rows)
    for avalanche in (False, True):
        at = [index for index, row in enumerate(rows) if row.avalanche == avalanche and not row.failed]
        shown = [_figures(rows[index], by_kl=by_kl) for index in at]
        colour, marker = (ACCENT, "D") if avalanche else (PALETTE[0], "o")
        label = "avalanche point" if avalanche else None
        _whiskers(axes, at, shown, colour=colour, marker=marker, label=label)
    _mark_failed(axes, [index for index, row in enumerate(rows) if row.failed])
    axes.set_xlim(-0.7, len(rows) - 0.3)
    _value_axis(axes.yaxis, by_kl=by_kl)
    least = sections["config"].get("avalanche_threshold", nan)
    if not by_kl:
        axes.axhline(0, color=PALE, linewidth=0.6)
        if not isnan(drawable(least)) and axes.get_ylim()[1] > 50 * drawable(least):
            axes.axhline(100 * drawable(least), color=ACCENT, linewidth=0.8, linestyle=":", label="avalanche threshold")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
    _ticks(axes.xaxis, [row.name for row in rows], most=16, turned=True)
    return None


def draw_amplification(axes: "Axes", sections: Sections) -> None:
    """KL of a window over the sum of those of its layers: above 1 they make each other worse."""
    rows = windows(sections)
    shown = [tuple(drawable(end, log=True) for end in _ends(row.amplification)) for row in rows]
    if all(isnan(value) for value, _, _ in shown):
        return empty(axes, "amplification needs windows and a map")
    _whiskers(axes, list(range(len(rows))), shown, colour=PALETTE[2], marker="s")
    axes.axhline(1, color=PALE, linewidth=0.8)
    axes.set_yscale("log", base=2)
    _plain_log(axes.yaxis)
    axes.set_xlim(-0.7, len(rows) - 0.3)
    axes.set_ylabel("KL / sum\nof its layers")
    _ticks(axes.xaxis, [row.name for row in rows], most=16, turned=True)
    return None


# --- operators and channels -------------------------------------------------------------------------------------


def draw_operators(axes: "Axes", sections: Sections, *, by_kl: bool, names: bool = True) -> None:
    """A dot and its interval for each operator, the worst on top; colour is severity."""
    rows = operators(sections)
    if not rows:
        return empty(axes, "operators were not looked at")
    for at, row in enumerate(rows):
        if not row.failed:
            colour = severity_colour(row.severity) if row.conclusive else PALE
            _whiskers(axes, [at], [_figures(row, by_kl=by_kl)], colour=colour, marker="o", upright=False)
    _mark_failed(axes, [at for at, row in enumerate(rows) if row.failed], upright=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _value_axis(axes.xaxis, by_kl=by_kl)
    axes.grid(axis="x", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    if not by_kl:
        axes.axvline(0, color=PALE, linewidth=0.6)
    _ticks(axes.yaxis, [row.name for row in rows] if names else [""] * len(rows), most=40)
    return None


def draw_channels(axes: "Axes", sections: Sections) -> None:
    """Every outlier channel by layer and ratio; colour is the module, open circles are single tokens."""
    seen = modules(sections)
    rows = [(row.layer, row) for row in seen if row.ratios and row.layer is not None]
    kinds = sorted({row.kind for _, row in rows})
    if not rows:
        return empty(axes, "no outlier channels" if seen else "channels were not looked at")
    layers = {layer: at for at, layer in enumerate(sorted({row.layer for row in seen if row.layer is not None}))}
    for layer, row in rows:
        colour = PALETTE[kinds.index(row.kind) % len(PALETTE)]
        faces = [colour if persistent else "none" for persistent in row.persistent]
        heights = [drawable(ratio, log=True) for ratio in row.ratios]
        axes.scatter([layers[layer]] * len(heights), heights, s=22, c=faces, edgecolors=colour)
    for at, kind in enumerate(kinds[: len(PALETTE)]):
        axes.scatter([], [], s=22, color=PALETTE[at], label=printable(kind, longest=40))
    axes.scatter([], [], s=22, facecolors="none", edgecolors=INK, label="open: in single tokens")
    axes.set_yscale("log")
    _plain_log(axes.yaxis, "x")
    axes.set_xlim(-0.7, len(layers) - 0.3)
    axes.set_xlabel("layer")
    axes.set_ylabel("largest value / median channel's")
    _ticks(axes.xaxis, [f"{layer}" for layer in layers], most=16)
    for entry in axes.legend(loc="upper left", bbox_to_anchor=(0, -0.17), ncols=4).get_texts():
        entry.set_parse_math(False)
    return None


# --- marks ------------------------------------------------------------------------------------------------------


def _figures(row: Place, *, by_kl: bool) -> tuple[float, float, float]:
    found = _ends(row.kl if by_kl else row.lost)
    value, low, high = (drawable(end if by_kl else 100 * end, log=by_kl) for end in found)
    return value, low, high


def _ends(figure: Any) -> tuple[float, float, float]:
    return figure.value, figure.low, figure.high


def _whiskers(
    axes: "Axes",
    at: Sequence[float],
    shown: Sequence[tuple[float, ...]],
    *,
    colour: str,
    marker: str,
    label: str | None = None,
    upright: bool = True,
) -> None:
    kept = [(place, *ends) for place, ends in zip(at, shown, strict=True) if not isnan(ends[0])]
    if not kept:
        return
    places, values, lows, highs = map(list, zip(*kept, strict=True))
    lows = [value if isnan(low) else low for value, low in zip(values, lows, strict=True)]
    highs = [value if isnan(high) else high for value, high in zip(values, highs, strict=True)]
    (axes.vlines if upright else axes.hlines)(places, lows, highs, color=colour, linewidth=1.4, alpha=0.75)
    across, down = (places, values) if upright else (values, places)
    axes.plot(across, down, marker, color=colour, markersize=4.5, label=label)


def _mark_failed(axes: "Axes", at: Sequence[int], *, upright: bool = True) -> None:
    """A cross on the edge: there is no figure."""
    if not at:
        return
    edge, along = [0.97] * len(at), list(at)
    place = axes.get_xaxis_transform() if upright else axes.get_yaxis_transform()
    across, down = (along, edge) if upright else (edge, along)
    axes.plot(across, down, "X", color="black", markersize=6, transform=place, label="failed", clip_on=False)


def _value_axis(axis: Any, *, by_kl: bool) -> None:
    if by_kl and axis.get_minpos() < inf:  # there is nothing to take the logarithm of where all rows failed
        (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
        _plain_log(axis)
    axis.set_label_text("KL, nats/token" if by_kl else "accuracy lost, %")


def _plain_log(axis: Any, unit: str = "") -> None:
    """Ticks as plain numbers: typeset powers take as long as the rest of the axes."""
    axis.axes.minorticks_off()
    axis.set_major_formatter(f"{{x:g}}{unit}")


def _ticks(axis: Any, names: Sequence[str], *, most: int, turned: bool = False) -> None:
    """Every name, or every n-th where they would run into each other."""
    step = -(-len(names) // most)
    at = list(range(0, len(names), step))
    labels = [printable(names[index], longest=18) for index in at]
    axis.set_ticks(at, labels=labels, rotation=90 if turned else 0, parse_math=False)
