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
from .drawing import Draw, parts
from .family import Measured, register

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
        draw = Draw(key, value.device)
        for part in parts(value):
            wide = part if part.dtype in (torch.float32, torch.float64) else part.float()
            self.move_(wide, scale, draw)
            if wide is not part:
                part.copy_(wide)

    @abstractmethod
    def move_(self, value: Tensor, scale: float, draw: Draw) -> None:
        """Add the error to one part."""


@register
@dataclass(frozen=True)
class RelativeGaussian(_Dense):
    """Error `s * |t| * N(0, 1)`: what independent rounding errors of a product look like."""

    name: ClassVar[str] = "relative_gaussian"

    def move_(self, value: Tensor, scale: float, draw: Draw) -> None:
        """t + s * t * z, which has the law of t + s * |t| * z because z is symmetric."""
        value.addcmul_(value, draw.normal(value), value=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of error / value."""
        return sqrt(seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0


@register
@dataclass(frozen=True)
class AbsoluteGaussian(_Dense):
    """Error `s * N(0, 1)`, whatever the size of the value."""

    name: ClassVar[str] = "absolute_gaussian"

    def move_(self, value: Tensor, scale: float, draw: Draw) -> None:
        """t + s * z."""
        value.add_(draw.normal(value), alpha=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of the error."""
        return sqrt(seen.sq_error / seen.finite) if seen.finite else 0.0


@register
@dataclass(frozen=True)
class Uniform(_Dense):
    """Error `s * |t| * U(-1, 1)`: bounded, as rounding to a grid is."""

    name: ClassVar[str] = "uniform"

    def move_(self, value: Tensor, scale: float, draw: Draw) -> None:
        """t + s * t * u, u symmetric."""
        value.addcmul_(value, draw.uniform(value), value=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of error / value, times sqrt 3 (the standard deviation of U(-1, 1) is 1 / sqrt 3)."""
        return sqrt(3.0 * seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0


@register
@dataclass(frozen=True)
class SystematicBias(_Dense):
    """Error `s * sign(t)`: every value a fixed amount too large in magnitude; zeros stay zero."""

    name: ClassVar[str] = "systematic_bias"
    draws: ClassVar[bool] = False

    def move_(self, value: Tensor, scale: float, draw: Draw) -> None:
        """t + s * sign(t); nothing is drawn."""
        value.add_(value.sign(), alpha=scale)

    def dose(self, seen: Measured) -> float:
        """Mean abs error over the elements that are not zero."""
        return seen.abs_error / seen.nonzero if seen.nonzero else 0.0


@register
@dataclass(frozen=True)
class RelativeBias(_Dense):
    """Error `s * |t|`: positive values too large, negative ones too small in magnitude."""

    name: ClassVar[str] = "relative_bias"
    draws: ClassVar[bool] = False

    def move_(self, value: Tensor, scale: float, draw: Draw) -> None:
        """t + s * |t|; nothing is drawn."""
        value.add_(value.abs(), alpha=scale)

    def dose(self, seen: Measured) -> float:
        """Root mean square of error / value."""
        return sqrt(seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0
