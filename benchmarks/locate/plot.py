"""Draws how small a fault may be, from results.json: python benchmarks/locate/plot.py [locate-limits.png]"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "pictures" / "locate-limits.png"
COLOURS = {"block output": "#1f6feb", "linear": "#d4731c", "rms_norm": "#2e9e5b", "softmax": "#9a4fc4"}
LINES = {"float32": "-", "bfloat16": "--"}


def panel(axes: Axes, kind: str, results: dict[str, Any]) -> None:
    """Share found against magnitude, a line for each place and dtype, down to where no bit changes."""
    for dtype, style in LINES.items():
        for place, found in results[dtype].get(kind, {}).items():
            tried = [row for row in found["sweep"] if row["effective"]]
            x = [row["magnitude"] for row in tried]
            y = [100 * row["found"] / row["effective"] for row in tried]
            axes.plot(x, y, style, color=COLOURS[place], marker="o", markersize=3, linewidth=1.3)
            if found["ends_inert"] and tried:
                axes.plot(x[-1], y[-1], "o", color="white", markeredgecolor=COLOURS[place], markersize=6)
    axes.axhline(95, color="#999999", linewidth=0.7, linestyle=":")
    axes.set_title(kind, fontsize=10)
    axes.set_ylim(-4, 104)
    if kind == "wrong_rounding":
        axes.set_xlabel("bits lost", fontsize=8)
    else:
        axes.set_xscale("log", base=2 if kind == "lut_exp" else 10)
        axes.set_xlabel("width of a table's step" if kind == "lut_exp" else "magnitude", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.2)


def main() -> None:
    results = json.loads((HERE / "results.json").read_text())["limits"]
    kinds = list(results["float32"])
    figure, grid = plt.subplots(2, 4, figsize=(11, 5.2), sharey=True, layout="constrained")
    for axes, kind in zip(grid.flat, kinds, strict=False):
        panel(axes, kind, results)
    for axes in grid[:, 0]:
        axes.set_ylabel("found, % of effective trials", fontsize=8)
    rest = grid.flat[len(kinds)]
    rest.axis("off")
    handles = [Line2D([], [], color=colour, label=place) for place, colour in COLOURS.items()]
    handles += [Line2D([], [], color="#555555", linestyle=style, label=dtype) for dtype, style in LINES.items()]
    handles += [Line2D([], [], color="white", marker="o", markeredgecolor="#555555", label="less changes no bit")]
    rest.legend(handles=handles, loc="center", fontsize=8, frameon=False)
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else PICTURE, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
