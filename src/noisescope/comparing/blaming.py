"""Source or amplifier: the error that a layer adds by itself beside the error that it inherits.

    source        added an error of its own beyond the floor, when given the reference's input
    amplifier     carries an error beyond the floor, all of it inherited; `gain` says how it left
    clean         its output is within the floor

Without a run that was fed with the reference's inputs, only the layer of the first divergence is known to be a source;
what comes after it is `unknown`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..specs import OUTSIDE, Layer
from ..traces import Trace
from .judging import Judged, find_first, same_kernels

__all__ = ["LayerRow", "blame"]


@dataclass(frozen=True)
class LayerRow:
    """One layer. Errors are relative to the size of its output."""

    layer: Layer
    role: str
    """source, amplifier, clean or unknown"""
    error: float
    """at its last operator"""
    inherited: float
    """at the last operator of the layer before"""
    added: float | None
    """with the reference's input; None if it was not fed"""
    gain: float | None
    """error / inherited"""
    mape: float
    first: Judged | None
    """of a source: where in it the error began"""

    @property
    def word(self) -> str:
        """For people."""
        if self.role != "amplifier" or self.gain is None:
            return {"source": "SOURCE", "unknown": "not separated"}.get(self.role, self.role)
        return "amplifies" if self.gain > 1.05 else "damps" if self.gain < 0.95 else "passes on"


def blame(free: Sequence[Judged], fed: Sequence[Judged], first: Judged | None, a: Trace, b: Trace) -> tuple[LayerRow, ...]:
    """The layers in their order."""
    ours = _by_layer(free)
    own = _by_layer(fed)
    alike = bool(fed) and _mostly_same_bits(own, a, b)
    rows: list[LayerRow] = []
    before = 0.0
    for layer, sites in ours.items():
        last = sites[-1]
        error = last.metrics.relative_error.value
        began = _began(own.get(layer, []), a, b, alike=alike) if first is not None else None
        role = _role(layer, sites, began, first, fed=bool(fed))
        rows.append(
            LayerRow(
                layer=layer,
                role=role,
                error=error,
                inherited=before,
                added=own[layer][-1].metrics.relative_error.value if own.get(layer) else None,
                gain=error / before if before else None,
                mape=last.metrics.mape.value,
                first=(began or first) if role == "source" else None,
            )
        )
        before = error
    return tuple(rows)


def _by_layer(sites: Sequence[Judged]) -> dict[Layer, list[Judged]]:
    """Forward sites, or gradients where there is nothing else, in the layers' order."""
    found: dict[Layer, list[Judged]] = {}
    for site in sites:
        if site.site.layer is not None and site.site.phase == "forward":
            found.setdefault(site.site.layer, []).append(site)
    return {layer: found[layer] for layer in sorted(found, key=_order)}


def _order(layer: Layer) -> tuple[int, int]:
    if isinstance(layer, int):
        return 1, layer
    return (0, 0) if layer == OUTSIDE[0] else (2, OUTSIDE.index(layer) if layer in OUTSIDE else len(OUTSIDE))


def _began(sites: Sequence[Judged], a: Trace, b: Trace, *, alike: bool) -> Judged | None:
    """Where a fed layer's own error began; None if it added none."""
    if (found := find_first(sites, a, b)) is not None:
        return found
    return next((site for site in sites if not site.same_bits), None) if alike else None


def _mostly_same_bits(own: dict[Layer, list[Judged]], a: Trace, b: Trace) -> bool:
    """Whether any difference in bits is an error: the devices are of one make, or most fed layers agree in all bits."""
    if same_kernels(a, b):
        return True
    equal = [all(site.same_bits for site in sites) for layer, sites in own.items() if isinstance(layer, int)]
    return 2 * sum(equal) > len(equal)


def _role(layer: Layer, sites: Sequence[Judged], began: Judged | None, first: Judged | None, *, fed: bool) -> str:
    if first is None:
        return "clean"
    if began is not None or (not fed and layer == first.site.layer):
        return "source"
    if not any(site.beyond for site in sites):
        return "clean"
    return "amplifier" if fed else "unknown"
