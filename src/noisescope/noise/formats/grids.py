"""Grids: the numbers that an element of a format can be, and how a value is put onto one of them.

A float of e exponent and m mantissa bits has steps of 2^(floor(log2 |x|) - m), and below its smallest normal number
those of that number; an integer has steps of 1. Nearest is to even where a value lies halfway; stochastic goes up with
the probability of how far the value is on its way, so that its mean is the value. What is beyond the largest number
becomes that number (infinity in 16 bit, as everywhere).
"""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

__all__ = ["BF16", "E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "FP16", "INT4", "INT8", "Grid", "power_of_two"]

_EXPONENT = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF0000000000000)}
"""dtype -> integer of the same width, and where its exponent is in it"""


def power_of_two(value: Tensor) -> Tensor:
    """The largest power of two that each value (float32 or float64) reaches; 0 for subnormal numbers and for 0."""
    integer, exponent = _EXPONENT[value.dtype]
    return value.contiguous().view(integer).bitwise_and(exponent).view(value.dtype)


@dataclass(frozen=True)
class Grid:
    """The values of one element."""

    bits: int
    lowest: float
    highest: float
    mantissa_bits: int | None = None
    """None for integers"""
    smallest_normal: float = 1.0
    saturates: bool = True
    """False if what is too large becomes infinite"""

    @property
    def largest_power(self) -> int:
        """The exponent of the largest power of two on the grid."""
        return int(torch.tensor(self.highest).log2().floor())

    def nearest(self, value: Tensor, zero: Tensor | None = None) -> Tensor:
        """Each value (float32 or float64) on the nearest number of the grid, halves to even.

        `zero` is the number of the grid that stands for 0, where it is another.
        """
        step = self._steps(value)
        return self._bounded(value.round() if step is None else (value / step).round_().mul_(step), zero)

    def stochastic(self, value: Tensor, uniform: Tensor, zero: Tensor | None = None) -> Tensor:
        """Each value on one of its two neighbours, by numbers from [0, 1) of the same shape."""
        step = self._steps(value)
        in_steps = value if step is None else value / step
        below = in_steps.floor()
        # compared with the way from below, not added to it: what is on the grid has none, and stays
        rounded = below.add_((in_steps - below).gt_(uniform))
        return self._bounded(rounded if step is None else rounded.mul_(step), zero)

    def exceeded(self, value: Tensor, zero: Tensor | None = None) -> Tensor:
        """Where the nearest number, were there one for every value, lies beyond the ends of the grid."""
        step = self._steps(value)
        nearest = value.round() if step is None else (value / step).round_().mul_(step)
        shift = 0.0 if zero is None else zero
        return (nearest + shift > self.highest) | (nearest + shift < self.lowest)

    def _steps(self, value: Tensor) -> Tensor | None:
        """The distance of neighbours around each value: its power of two, less the mantissa's bits."""
        if self.mantissa_bits is None:
            return None
        return power_of_two(value).clamp_(self.smallest_normal, self.highest).mul_(2.0**-self.mantissa_bits)

    def _bounded(self, value: Tensor, zero: Tensor | None) -> Tensor:
        if zero is not None:
            return value.clamp_(self.lowest - zero, self.highest - zero)
        if self.saturates:
            return value.clamp_(self.lowest, self.highest)
        return value.masked_fill_(value > self.highest, inf).masked_fill_(value < self.lowest, -inf)


def _integers(bits: int) -> Grid:
    return Grid(bits, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)


def _floats(exponent_bits: int, mantissa_bits: int, highest: float, *, saturates: bool = True) -> Grid:
    bias = 2 ** (exponent_bits - 1) - 1
    return Grid(1 + exponent_bits + mantissa_bits, -highest, highest, mantissa_bits, 2.0 ** (1 - bias), saturates)


INT4, INT8 = _integers(4), _integers(8)
E2M1 = _floats(2, 1, 6.0)
E2M3 = _floats(2, 3, 7.5)
E3M2 = _floats(3, 2, 28.0)
E4M3 = _floats(4, 3, 448.0)  # without infinities: the last code of the largest exponent is NaN
E5M2 = _floats(5, 2, 57344.0)
FP16 = _floats(5, 10, 65504.0, saturates=False)
BF16 = _floats(8, 7, torch.finfo(torch.bfloat16).max, saturates=False)
