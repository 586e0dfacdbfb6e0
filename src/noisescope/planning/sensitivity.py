"""How much the model minds noise in each layer, read from a report: KL in nats per token, with its interval.

Blocks have the figure that the diagnosis gives a layer; where it looked at operators alone, the sum over the layer's
cells of the map, which add up. `embed`, `final_norm` and `head` are cells of the map. All are at the noise scale of the
layers: a KL grows with the square of its scale.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from ..errors import InputError
from ..report import Report
from ..report.figures import Interval
from ..report.layers import in_model_order
from ..report.rows import layer_scale
from ..specs import Layer

__all__ = ["layer_sensitivity"]

BROKEN = Interval(inf, inf, inf)
"""of a layer in which noise makes the output non-finite"""


def layer_sensitivity(report: Report, *, operators: Iterable[str] | None = None) -> dict[Layer, Interval]:
    """Layer -> KL, from the first layer to the last; an error for a report that tells nothing of them.

    With `operators` the noise in these alone, of which only the map tells.
    """
    sections = report.sections
    cells: Iterable[Mapping[str, Any]] = sections["map"].get("cells", ())
    if operators is not None:
        return _of_operators(cells, set(operators), _factor(sections))
    found = _by_layer(cells, _factor(sections))
    rows = sections["metrics"].get("layers", {}).items()
    found |= {int(layer): _figure(row) for layer, row in rows if row and layer.isdecimal()}
    if not found:
        level = sections["config"].get("level", "channel")
        raise InputError(f"report: tells nothing of layers (level {level}); make one with `noisescope diagnose`")
    return {layer: found[layer] for layer in in_model_order(found)}


def _of_operators(cells: Iterable[Mapping[str, Any]], wanted: set[str], factor: float) -> dict[Layer, Interval]:
    found = _by_layer((cell for cell in cells if cell["operator"] in wanted), factor)
    if not found:
        raise InputError(f"operators: the map of the report has no cell of {' '.join(sorted(wanted))}")
    return {layer: found[layer] for layer in in_model_order(found)}


def _figure(row: Mapping[str, Any]) -> Interval:
    return BROKEN if "failed" in row else Interval.of(row["kl"])


def _by_layer(cells: Iterable[Mapping[str, Any]], factor: float) -> dict[Layer, Interval]:
    """The sums over the cells of each layer; the ends add up too, as if all cells erred alike."""
    found: dict[Layer, Interval] = {}
    for cell in cells:
        kl, so_far = cell["kl"], found.get(cell["layer"], Interval(0.0, 0.0, 0.0))
        ends = (getattr(so_far, name) + factor * kl[name] for name in ("value", "low", "high"))
        found[cell["layer"]] = Interval(*ends)
    return found


def _factor(sections: Mapping[str, Any]) -> float:
    """From the noise scale of the map to that of the layers, for a KL."""
    scale = sections["map"].get("noise_scale", sections["config"]["noise_scale"])
    ratio = layer_scale(sections) / scale if scale else 1.0
    return float(ratio * ratio)
