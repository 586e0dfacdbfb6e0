"""The documented rule for precisions: bits by what noise in a layer costs, then moved towards a target on average.

    degradation    above 15%   5 to 15%   below 5%
    bits           16          8          4

Above the target, 8-bit layers that lose less than 10% go to 4, the least degraded first, until the average is no more
than the target. Below it, 4-bit layers go to 8, the most degraded first, as long as the average stays within it. So no
layer ever has fewer bits than one that is less degraded. The target is a ceiling: the rule may stay below it.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TypeAlias

from ..errors import InputError, quoted
from ..specs import Layer

__all__ = ["assign_bits", "average_bits"]

Sizes: TypeAlias = Mapping[Layer, float] | None

FEW, SOME, MANY = 4, 8, 16
MINDS, MINDS_MUCH = 0.05, 0.15
"""degradations above which a layer has 8 and 16 bits"""
MAY_BE_LOWERED = 0.10
"""degradation below which a layer of 8 bits may go to 4"""


def assign_bits(
    degradation: Mapping[Layer, float], *, target: float = 6, sizes: Sizes = None, closest: bool = False
) -> dict[Layer, int]:
    """Layer -> bits, by the rule above.

    Args:
        degradation: layer -> share of the accuracy lost to noise in it.
        target: bits on average, from 4 to 16; one that the rule cannot come down to is refused.
        sizes: layer -> number of weights, by which the average is weighted; None: all alike.
        closest: do not refuse such a target, and come down as far as the rule does.
    """
    _check(degradation, target, sizes)
    bits = {layer: _bits(lost) for layer, lost in degradation.items()}
    ascending = sorted(degradation, key=lambda layer: degradation[layer])
    if average_bits(bits, sizes) > target:
        lowered = [layer for layer in ascending if bits[layer] == SOME and degradation[layer] < MAY_BE_LOWERED]
        return _lowered(bits, lowered, target, sizes, closest=closest)
    return _raised(bits, [layer for layer in reversed(ascending) if bits[layer] == FEW], target, sizes)


def _lowered(
    bits: dict[Layer, int], order: Iterable[Layer], target: float, sizes: Sizes, *, closest: bool
) -> dict[Layer, int]:
    """As many to 4 bits as it takes."""
    for layer in order:
        bits = {**bits, layer: FEW}
        if average_bits(bits, sizes) <= target:
            return bits
    if closest:
        return bits
    raise InputError(
        f"target_avg_bits: got {target:g}, the rule comes down to {average_bits(bits, sizes):.3g}: "
        f"{_counted(bits, MANY)} more than 15% and have 16 bits, {_counted(bits, SOME)} 10 to 15% and have 8"
    )


def _raised(bits: dict[Layer, int], order: Iterable[Layer], target: float, sizes: Sizes) -> dict[Layer, int]:
    """As many to 8 bits as the target allows."""
    for layer in order:
        more = {**bits, layer: SOME}
        if average_bits(more, sizes) > target:
            return bits
        bits = more
    return bits


def average_bits(bits: Mapping[Layer, float], sizes: Sizes = None) -> float:
    """Bits of a weight on average."""
    weights = sizes if sizes is not None else dict.fromkeys(bits, 1.0)
    return sum(weights[layer] * count for layer, count in bits.items()) / sum(weights[layer] for layer in bits)


def _bits(lost: float) -> int:
    return MANY if lost > MINDS_MUCH else SOME if lost >= MINDS else FEW


def _counted(bits: Mapping[Layer, int], wanted: int) -> str:
    count = sum(have == wanted for have in bits.values())
    return f"{count} layer{' loses' if count == 1 else 's lose'}"


def _check(degradation: Mapping[Layer, float], target: float, sizes: Sizes) -> None:
    if not degradation:
        raise InputError("sensitivity_profile: got no layers, expected at least one")
    for layer, lost in degradation.items():
        if isinstance(lost, bool) or not isinstance(lost, (int, float)) or not isfinite(lost):
            raise InputError(
                f"sensitivity_profile: {quoted(layer)}: got {quoted(lost)}, expected a share of accuracy lost"
            )
    number = isinstance(target, (int, float)) and not isinstance(target, bool)
    if not number or not FEW <= target <= MANY:
        raise InputError(f"target_avg_bits: got {quoted(target)}, expected a number from {FEW} to {MANY}")
    for layer in degradation if sizes is not None else ():
        if sizes is not None and not sizes.get(layer, 0) > 0:
            raise InputError(f"sizes: {quoted(layer)}: got {sizes.get(layer)}, expected a number of weights above 0")
