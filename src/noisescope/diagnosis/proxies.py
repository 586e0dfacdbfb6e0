"""Cheap stand-ins for the sensitivity of a layer, each as one figure a layer, to be compared with what noise shows."""

from collections.abc import Mapping, Sequence

from ..measure.agreement import Agreement, agreement_panel
from ..measure.hessian import HessianTrace
from ..sites import Layout
from ..specs import OUTSIDE, Layer
from .channel_report import ChannelReport
from .mapping import SensitivityMap

__all__ = ["compare_proxies", "outliers_by_layer"]

FEWEST_LAYERS = 3


def compare_proxies(
    sensitivity: Mapping[Layer, float],
    found: SensitivityMap,
    *,
    outliers: Mapping[Layer, float] | None,
    hessian: HessianTrace | None,
    seed: int,
) -> Agreement | None:
    """Whether cheaper measures rank the layers as noise does; None where there are too few layers to rank."""
    if len(sensitivity) < FEWEST_LAYERS:
        return None
    columns: dict[str, Mapping[Layer, float]] = {
        "sensitivity": sensitivity,
        "fisher": _fisher_by_layer(found),
        "sparsity": {layer: share for layer, share in found.sparsity.items() if layer in sensitivity},
    }
    if outliers is not None:
        columns["outlier_count"] = outliers
    if hessian is not None:
        columns["hessian_trace"] = {layer: row.trace.value for layer, row in hessian.layers.items()}
    return agreement_panel({name: column for name, column in columns.items() if column}, seed=seed)


def outliers_by_layer(channels: ChannelReport, layout: Layout, layers: Sequence[int]) -> dict[Layer, float]:
    """Outlier channels of the modules of each layer."""
    home = {path: layout.home.get(module) for module, path in layout.paths.items()}
    sums: dict[Layer, float] = dict.fromkeys(layers, 0.0)
    for path, module in channels.modules.items():
        layer = home.get(path)
        if layer in sums and layer is not None:
            sums[layer] += len(module.outliers)
    return sums


def _fisher_by_layer(found: SensitivityMap) -> dict[Layer, float]:
    """Fisher information of the activations, summed over the products of each layer."""
    sums: dict[Layer, float] = {}
    for (layer, operator), figure in found.absolute.items():
        if operator == "linear" and layer not in OUTSIDE:
            sums[layer] = sums.get(layer, 0.0) + figure.value
    return sums
