"""Draws the robustness curves, from results.json: python benchmarks/training/plot.py [training-robustness.png]"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "pictures" / "training-robustness.png"
COLOURS = {
    "clean": "#555555",
    "forward": "#1f6feb",
    "backward": "#d4731c",
    "both": "#9a4fc4",
    "adaptive": "#2e9e5b",
    "equalize": "#c43d5f",
    "aqn": "#a08a2c",
    "aqn x10": "#3aa6b9",
}


def scale_of(condition: str) -> float:
    return 0.0 if condition == "clean" else float(condition.removeprefix("noise "))


def curves(axes: Axes, arms: dict[str, Any], kind: str) -> None:
    """The difference to clean training against the noise, in thousandths of a nat, with its interval."""
    for place, (arm, colour) in enumerate(COLOURS.items()):
        if arm == "clean":
            axes.axhline(0, color=colour, linewidth=1.2)
            continue
        names = [name for name in arms[arm] if name != "mxfp4"]
        found = [arms[arm][name][kind] for name in names]
        x = [scale_of(name) + 0.0012 * (place - 4) for name in names]  # beside each other, to be told apart
        y = [1000 * row["value"] for row in found]
        ends = [[1000 * abs(row[end] - row["value"]) for row in found] for end in ("low", "high")]
        axes.errorbar(x, y, ends, color=colour, marker="o", markersize=3, linewidth=1.2, capsize=2)
    axes.set_xlabel("relative noise in every linear")
    axes.grid(alpha=0.2)


def formats(axes: Axes, arms: dict[str, Any]) -> None:
    """The same with the weights in mxfp4, an arm a row."""
    names = [arm for arm in COLOURS if arm != "clean"]
    for place, arm in enumerate(names):
        row = arms[arm]["mxfp4"]["nll_against_clean"]
        ends = [[1000 * abs(row[end] - row["value"])] for end in ("low", "high")]
        axes.errorbar(1000 * row["value"], place, xerr=ends, color=COLOURS[arm], marker="o", markersize=4, capsize=2)
    axes.axvline(0, color=COLOURS["clean"], linewidth=1.2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("loss against clean training, 1/1000 nats")
    axes.grid(alpha=0.2)


def main() -> None:
    results = json.loads((HERE / "results.json").read_text())
    arms = results["summary"]
    figure, (loss, cost, rounded) = plt.subplots(1, 3, figsize=(12.5, 4.4), layout="constrained")
    curves(loss, arms, "nll_against_clean")
    loss.set_title("loss against clean training, 1/1000 nats", fontsize=10)
    curves(cost, arms, "cost_against_clean")
    cost.set_title("what the noise costs, against clean training", fontsize=10)
    formats(rounded, arms)
    rounded.set_title("weights in mxfp4", fontsize=10)
    lines = [plt.Line2D([], [], color=colour, marker="o", markersize=3, label=arm) for arm, colour in COLOURS.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=9)
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else PICTURE, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
