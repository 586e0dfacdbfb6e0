"""A picture of the windows: layers across, degradation as colour."""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_sensitivity_heatmap"]


def plot_sensitivity_heatmap(windows: Mapping[str, Mapping[str, Any]], window_size: int = 3) -> "Figure":
    """A matplotlib figure of `sliding_window_diagnosis`: each layer's mean over its windows, and the windows."""
    from matplotlib.figure import Figure

    from ..diagnosis.by_layer import layer_degradation

    layers = layer_degradation(windows)
    if not layers:
        raise InputError("windows: none with a degradation, expected what sliding_window_diagnosis gives")
    figure = Figure(figsize=(max(6.0, 0.3 * len(layers)), 4.5), layout="constrained")
    strip, bars = figure.subplots(2, 1, height_ratios=(1, 4), sharex=True)
    first, last = min(layers), max(layers)
    values = [[100 * layers.get(layer, float("nan")) for layer in range(first, last + 1)]]
    most = max([1.0, *(value for value in values[0] if isfinite(value))])  # where noise took nothing all is pale
    extent = (first - 0.5, last + 0.5, 0, 1)
    image = strip.imshow(values, aspect="auto", cmap="Reds", vmin=0, vmax=most, extent=extent)
    strip.set_yticks([])
    strip.set_title(f"accuracy lost to noise, by layer and by window of {window_size} layers")
    figure.colorbar(image, ax=[strip, bars], label="accuracy lost, %")
    for row in windows.values():
        if row.get("degradation") is None:  # it could not be measured
            continue
        middle, wide = (row["start_layer"] + row["end_layer"]) / 2, row["end_layer"] - row["start_layer"] + 1
        low, high = row.get("degradation_interval", (row["degradation"], row["degradation"]))
        bars.hlines(100 * row["degradation"], middle - wide / 2, middle + wide / 2, color="0.3")
        bars.vlines(middle, 100 * low, 100 * high, color="0.3", linewidth=0.8)
    bars.axhline(0, color="0.8", linewidth=0.8)
    bars.set_xlabel("layer")
    bars.xaxis.get_major_locator().set_params(integer=True)
    bars.set_ylabel("accuracy lost, %")
    return figure
