"""Scales: how the values of a block are brought into the range of their grid, and what that costs in bits.

A block is a row here: elements that share a scale. With a = largest abs of a block,

    none         no scale: a cast
    range        a / (half the width of the grid); integers also with a zero point, from the least to the largest
    shared       2^(floor(log2 a) - the grid's largest exponent): E8M0, the scale of the MX formats
    two levels   E4M3 of a / (6 t), t = (largest abs of the tensor) / (6 * 448): NVFP4

Without the second level a block scale in E4M3 ends at 2^-9, and a tensor of small weights becomes zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import torch
from torch import Tensor

from .grids import E4M3, Grid, power_of_two

__all__ = ["RULES", "SCALE_BITS", "Blocks", "Scaled"]

_SMALLEST = torch.finfo(torch.float32).smallest_normal
_LARGEST_SHARED = 2.0**127
"""of E8M0"""
_SMALLEST_TENSOR_SCALE = 2.0**-118
"""of NVFP4: its inverse, and that over the smallest block scale, are numbers still"""
_SMALLEST_BLOCK_SCALE = 2.0**-6
"""of NVFP4: the smallest normal number of E4M3, by which all-zero blocks can be divided too"""


@dataclass(frozen=True)
class Scaled:
    """Blocks in units of their scale."""

    values: Tensor
    scale: Tensor | None
    zero: Tensor | None = None
    """the number of the grid that stands for 0, where it is another"""

    def back(self, rounded: Tensor) -> Tensor:
        """The numbers that rounded values stand for."""
        return rounded if self.scale is None else rounded * self.scale


@dataclass(frozen=True)
class Blocks:
    """What a scale is chosen for."""

    rows: Tensor
    """one block each"""
    grid: Grid
    scale_dtype: torch.dtype

    def largest(self) -> Tensor:
        """Of each block, in magnitude."""
        return self.rows.abs().amax(-1, keepdim=True)

    def stored(self, scale: Tensor) -> Tensor:
        """The scale as it is stored: never zero, and infinite only where a value is."""
        return _within(scale, torch.finfo(self.scale_dtype).max).to(self.scale_dtype).to(self.rows.dtype)


def _within(scale: Tensor, largest: float) -> Tensor:
    """Scales of finite values within what can be stored: float64 has larger ones, whose values are then cut."""
    return torch.where(scale < inf, scale.clamp(_SMALLEST, largest), scale)


Rule: TypeAlias = Callable[[Blocks], Scaled]


def _cast(blocks: Blocks) -> Scaled:
    return Scaled(blocks.rows, None)


def _over_range(blocks: Blocks) -> Scaled:
    grid = blocks.grid
    if grid.mantissa_bits is not None:
        scale = blocks.stored(blocks.largest() / grid.highest)
        return Scaled(blocks.rows / scale, scale)
    scale = blocks.stored(blocks.largest() / ((grid.highest - grid.lowest) / 2))
    return Scaled(blocks.rows * (1.0 / scale), scale)


def _from_least(blocks: Blocks) -> Scaled:
    """Zero stays a number of the grid, as it must for padding and masks."""
    grid = blocks.grid
    least = blocks.rows.amin(-1, keepdim=True).clamp_(max=0)
    most = blocks.rows.amax(-1, keepdim=True).clamp_(min=0)
    # by halves, as the whole range of the largest numbers is none itself
    scale = ((most / 2 - least / 2) / ((grid.highest - grid.lowest) / 2)).clamp_(min=_SMALLEST)
    zero = (grid.lowest - (least / scale).round_()).clamp_(grid.lowest, grid.highest)
    scale = blocks.stored(scale)
    return Scaled(blocks.rows * (1.0 / scale), scale, zero)


def _shared_exponent(blocks: Blocks) -> Scaled:
    scale = _within(power_of_two(blocks.largest()).mul_(2.0**-blocks.grid.largest_power), _LARGEST_SHARED)
    return Scaled(blocks.rows / scale, scale)


def _two_levels(blocks: Blocks) -> Scaled:
    largest, end = blocks.largest(), blocks.grid.highest
    tensor = (largest.amax() / (E4M3.highest * end)).clamp_(min=_SMALLEST_TENSOR_SCALE)
    block = E4M3.nearest((largest / end / tensor).clamp_(_SMALLEST_BLOCK_SCALE, E4M3.highest))
    return Scaled(blocks.rows * ((1.0 / tensor) / block), tensor * block)


RULES: Mapping[str, Rule] = {
    "none": _cast,
    "range": _over_range,
    "least": _from_least,
    "shared": _shared_exponent,
    "two levels": _two_levels,
}
SCALE_BITS = {"shared": 8, "two levels": 8}
"""of one block; the other rules store theirs in the format's dtype for scales"""
