"""Source or amplifier: the error that a layer adds by itself beside the error that it inherits.

    source        adds an error of its own: beyond the floor when it is given the reference's input, or the first of all
    amplifier     carries an error, all of it inherited; its gain says how the error leaves
    clean         carries none beyond the floor

Between devices that give the same bits when they are healthy, any difference is an error, however small. Without a run
that was fed with the reference's inputs, only the layer of the first divergence is known to be a source; what comes
after it is `unknown`, as is everything where there is no floor to judge by. Where gradients alone diverge, the layers
are those that they pass, from the head down.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..specs import OUTSIDE, Layer
from .judging import Judged, find_first

__all__ = ["LayerRow", "blame", "ends_of", "layers_of", "worst_end"]


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
    beyond: bool
    """whether one of its operators is beyond the floor"""
    mape: float
    first: Judged | None
    """of a source: where in it the error began"""

    @property
    def word(self) -> str:
        """For people."""
        if self.role != "amplifier" or self.gain is None:
            return {"source": "SOURCE", "unknown": "not separated"}.get(self.role, self.role)
        if not self.beyond:
            return "below the floor"
        return "amplifies" if self.gain > 1.05 else "damps" if self.gain < 0.95 else "passes on"


def blame(
    free: Sequence[Judged], fed: Sequence[Judged], first: Judged | None, *, alike: bool | None
) -> tuple[LayerRow, ...]:
    """The layers in the order in which an error passes them; `alike` as for `find_first`."""
    phase = first.site.phase if first is not None else "forward"
    ours, own = layers_of(free, phase), layers_of(fed, phase)
    rows: list[LayerRow] = []
    for layer, sites in ours.items():
        last, fed_sites = worst_end(sites), own.get(layer, [])
        error, inherited = last.metrics.relative_error.value, rows[-1].error if rows else 0.0
        began = _began(layer, fed_sites, first, alike=alike) if first is not None else None
        carries = any(site.beyond or (alike and not site.same_bits) for site in sites)
        rows.append(
            LayerRow(
                layer=layer,
                role="source" if began else _role(sites, carries=first is not None and carries, fed=bool(own)),
                error=error,
                inherited=inherited,
                added=worst_end(fed_sites).metrics.relative_error.value if fed_sites else None,
                gain=error / inherited if inherited else None,
                beyond=any(site.beyond for site in sites),
                mape=last.metrics.mape.value,
                first=began,
            )
        )
    return tuple(rows)


def _role(sites: Sequence[Judged], *, carries: bool, fed: bool) -> str:
    """Of a layer that adds nothing that anybody knows of."""
    if not carries:
        return "clean" if any(site.tolerance is not None for site in sites) else "unknown"
    return "amplifier" if fed else "unknown"


def layers_of(sites: Sequence[Judged], phase: str = "forward") -> dict[Layer, list[Judged]]:
    """Sites of one phase by layer, in the order in which they are passed."""
    found: dict[Layer, list[Judged]] = {}
    for site in sites:
        if site.site.layer is not None and site.site.phase == phase:
            found.setdefault(site.site.layer, []).append(site)
    return {layer: found[layer] for layer in sorted(found, key=_order, reverse=phase == "backward")}


def ends_of(sites: Sequence[Judged]) -> list[Judged]:
    """A layer's last operator in each stage: prefill, decode."""
    return list({site.site.stage: site for site in sites}.values())


def worst_end(sites: Sequence[Judged]) -> Judged:
    """Of these the one with the largest error."""
    return max(ends_of(sites), key=lambda site: site.metrics.relative_error.value)


def _order(layer: Layer) -> tuple[int, int]:
    if isinstance(layer, int):
        return 1, layer
    return (0, 0) if layer == OUTSIDE[0] else (2, OUTSIDE.index(layer) if layer in OUTSIDE else len(OUTSIDE))


def _began(layer: Layer, fed: Sequence[Judged], first: Judged, *, alike: bool | None) -> Judged | None:
    """Where a layer's own error began; None if it added none."""
    if layer == first.site.layer:
        return first
    if (found := find_first(fed, alike=alike)) is not None:
        return found
    return next((site for site in fed if not site.same_bits), None) if alike else None
