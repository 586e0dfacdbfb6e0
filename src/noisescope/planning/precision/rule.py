"""The documented threshold rule, as formats of a plan: 16, 8 and 4 bits by what noise in a layer costs."""

from collections.abc import Mapping, Sequence

from ...errors import InputError
from ...noise.formats import parse_format
from ...specs import Layer
from ..threshold import assign_bits
from .choosing import Candidates, Chosen

__all__ = ["by_threshold", "require_sizes"]

_SIZES = (4, 8, 16)


def by_threshold(candidates: Candidates, degradation: Mapping[Layer, float], avg_bits: float) -> Chosen:
    """The choice of the rule, within so many bits with scales counted.

    Each size has the format of the plan's that is predicted to do least harm. The rule knows of bits without scales: if
    what it chooses takes more with them, or if it refuses the target, what loses least is lowered until it fits.
    """
    require_sizes(candidates.formats)
    formats = {bits: _best(candidates, bits) for bits in _SIZES}
    places = candidates.known.map.layers
    missing = [layer for layer in places if layer not in degradation]
    if missing:
        raise InputError(f"report: tells nothing of layer {missing[0]}; diagnose all layers for the threshold rule")
    known = {layer: degradation[layer] for layer in places}
    sizes = {layer: float(sum(p.size for p in candidates.known.map.places if p.layer == layer)) for layer in places}

    def chosen(bits: Mapping[Layer, int]) -> Chosen:
        return candidates.given(
            {
                path: formats[bits[layer]]
                for layer, paths in places.items()
                for path in paths
                if path not in candidates.kept
            }
        )

    bits = _within(known, avg_bits, sizes)
    ascending = sorted(known, key=lambda layer: known[layer])
    while (found := chosen(bits)).bits > avg_bits * (1 + 1e-12):
        lower = next((layer for layer in ascending if bits[layer] > 4), None)
        if lower is None:
            raise InputError(f"avg_bits: got {avg_bits:g}, but {formats[4]} everywhere takes {found.bits:.4g}")
        bits[lower] = 8 if bits[lower] == 16 else 4
    return found


def _within(known: Mapping[Layer, float], avg_bits: float, sizes: Mapping[Layer, float]) -> dict[Layer, int]:
    """What the rule says of the target; where it refuses, what it says before anything is lowered."""
    target = min(16.0, max(4.0, avg_bits))
    try:
        return dict(assign_bits(known, target=target, sizes=sizes))
    except InputError:
        free = assign_bits(known, target=16.0, sizes=sizes)
        raised = {layer for layer in free if free[layer] == 8 and known[layer] < 0.05}
        return {layer: 4 if layer in raised else count for layer, count in free.items()}


def require_sizes(formats: Sequence[str]) -> None:
    """Raises if the rule has no format for one of its sizes."""
    for bits in _SIZES:
        if not _fitting(formats, bits):
            raise InputError(f"formats: the threshold rule needs one of {bits} bits beside {' '.join(formats)}")


def _fitting(formats: Sequence[str], bits: int) -> list[str]:
    return [name for name in formats if parse_format(name).grid.bits == bits]


def _best(candidates: Candidates, bits: int) -> str:
    """Of the formats with elements of this size, the one of least predicted KL."""
    return min(_fitting(candidates.formats, bits), key=lambda name: candidates.uniform(name).kl)
