"""Dense noise: every element moves a little, at random or by a bias.

All arithmetic is in float32 (float64 for float64 values) and rounded once to the value's dtype.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from ..keys import Key
from ..specs import check_scale
from .family import Measured, register
from .parts import each_part

__all__ = ["AbsoluteGaussian", "RelativeBias", "RelativeGaussian", "SystematicBias", "Uniform"]


@dataclass(frozen=True)
class _Dense(ABC):
    """Shared by the dense family: a checked scale, parts, and wide arithmetic for narrow dtypes."""

    scale: float
    sparse: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_scale(self.scale))

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        """Disturb `value` in place, part by part, drawing from `key`."""

        def move_(part: Tensor, generator: torch.Generator) -> None:
            wide = part if part.dtype in (torch.float32, torch.float64) else part.float()
            self.move_(wide, scale, torch.empty_like(wide), generator)
            if wide is not part:
                part.copy_(wide)

        each_part(value, key, move_)

    @abstractmethod
    def move_(self, value: Tensor, scale: float, scratch: Tensor, generator: torch.Generator) -> None:
        """Add the error to one part; `scratch` has its shape and arbitrary contents."""


@register
@dataclass(frozen=True)
class RelativeGaussian(_Dense):
    """Error `s * |t| * N(0, 1)`: what independent rounding errors of a product look like."""

    name: ClassVar[str] = "relative_gaussian"

    def move_(self, value: Tensor, scale: float, scratch: Tensor, generator: torch.Generator) -> None:
        """t + s * t * z, which has the law of t + s * |t| * z because z is symmetric."""
        scratch.normal_(generator=generator)
        value.addcmul_(value, scratch, value=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of error / value."""
        return sqrt(seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0


@register
@dataclass(frozen=True)
class AbsoluteGaussian(_Dense):
    """Error `s * N(0, 1)`, whatever the size of the value."""

    name: ClassVar[str] = "absolute_gaussian"

    def move_(self, value: Tensor, scale: float, scratch: Tensor, generator: torch.Generator) -> None:
        """t + s * z."""
        scratch.normal_(generator=generator)
        value.add_(scratch, alpha=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of the error."""
        return sqrt(seen.sq_error / seen.elements) if seen.elements else 0.0


@register
@dataclass(frozen=True)
class Uniform(_Dense):
    """Error `s * |t| * U(-1, 1)`: bounded, as rounding to a grid is."""

    name: ClassVar[str] = "uniform"

    def move_(self, value: Tensor, scale: float, scratch: Tensor, generator: torch.Generator) -> None:
        """t + s * t * u, u symmetric."""
        scratch.uniform_(-1.0, 1.0, generator=generator)
        value.addcmul_(value, scratch, value=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of error / value, times sqrt 3 (the standard deviation of U(-1, 1) is 1 / sqrt 3)."""
        return sqrt(3.0 * seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0


@register
@dataclass(frozen=True)
class SystematicBias(_Dense):
    """Error `s * sign(t)`: every value a fixed amount too large in magnitude; zeros stay zero."""

    name: ClassVar[str] = "systematic_bias"

    def move_(self, value: Tensor, scale: float, scratch: Tensor, generator: torch.Generator) -> None:
        """t + s * sign(t); nothing is drawn."""
        torch.sign(value, out=scratch)
        value.add_(scratch, alpha=scale)

    def dose(self, seen: Measured) -> float:
        """Mean abs error over the elements that are not zero."""
        return seen.abs_error / seen.nonzero if seen.nonzero else 0.0


@register
@dataclass(frozen=True)
class RelativeBias(_Dense):
    """Error `s * |t|`: positive values too large, negative ones too small in magnitude."""

    name: ClassVar[str] = "relative_bias"

    def move_(self, value: Tensor, scale: float, scratch: Tensor, generator: torch.Generator) -> None:
        """t + s * |t|; nothing is drawn."""
        torch.abs(value, out=scratch)
        value.add_(scratch, alpha=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of error / value."""
        return sqrt(seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0
