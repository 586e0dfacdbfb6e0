"""The layers of a model by the risk of moving them to another device.

    risk = KL(layer) (divergence / s)^2

in nats per token: sensitivity times divergence, where the KL is what noise of scale s costs in the layer, and an error
costs in proportion to its square. It is what `compare --report` ranks repairs by. Without a comparison the risk is the
sensitivity alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan

from ..errors import InputError
from ..report import Report
from ..report.figures import Interval
from ..report.layers import label, layer_of_module
from ..report.rows import layer_scale, modules, windows
from ..specs import Layer
from .divergence import Divergence
from .sensitivity import layer_sensitivity

__all__ = ["LayerRisk", "rank_layers"]


@dataclass(frozen=True)
class LayerRisk:
    """One layer with what is known of it."""

    layer: Layer
    sensitivity: Interval
    divergence: Divergence | None
    risk: Interval
    avalanches: tuple[str, ...]
    outliers: int
    """outlier channels of its modules"""

    @property
    def order(self) -> tuple[float, float]:
        """What to sort by: of equal risks, as where nothing diverges, the more sensitive is first."""
        return -_known(self.risk.value), -_known(self.sensitivity.value)


def rank_layers(report: Report, divergence: Mapping[Layer, Divergence] | None = None) -> list[LayerRisk]:
    """The layers of a report, the riskiest first; `divergence` has to be known of all of them or of none."""
    sensitivity, scale = layer_sensitivity(report), layer_scale(report.sections)
    if divergence is not None and (missing := [label(layer) for layer in sensitivity if layer not in divergence]):
        raise InputError(
            f"comparison: sites: has none of {', '.join(missing[:5])}; compare traces of all sites, without --sites"
        )
    if divergence is not None and not scale > 0:
        raise InputError(f"report: noise_scale: got {scale:g}, expected one above 0 to measure an error by")
    avalanches = [place for place in windows(report.sections) if place.avalanche]
    outliers: dict[Layer | None, int] = {}
    for module in modules(report.sections):
        outliers[layer_of_module(module.name)] = outliers.get(layer_of_module(module.name), 0) + module.outliers
    rows = []
    for layer, kl in sensitivity.items():
        found = divergence[layer] if divergence is not None else None
        inside = tuple(
            f"{place.name} ({place.lost.percent})"
            for place in avalanches
            if isinstance(layer, int) and place.first <= layer <= place.last
        )
        rows.append(LayerRisk(layer, kl, found, _risk(kl, found, scale), inside, outliers.get(layer, 0)))
    return sorted(rows, key=lambda row: row.order)


def _risk(kl: Interval, divergence: Divergence | None, scale: float) -> Interval:
    if divergence is None:
        return kl
    error = divergence.error
    return Interval(
        _predicted(kl.value, error.value, scale),
        _predicted(kl.low, error.low, scale),
        _predicted(kl.high, error.high, scale),
    )


def _predicted(nats: float, error: float, scale: float) -> float:
    """The KL that an error costs; no error costs nothing, wherever it is."""
    ratio = error / scale
    return nats * ratio * ratio if error and nats else 0.0


def _known(value: float) -> float:
    return inf if isnan(value) else value
