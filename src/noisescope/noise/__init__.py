"""Noise models: each turns a tensor into a disturbed tensor of the same shape and dtype, in place.

To add one, write a frozen dataclass with the members of `Noise`, decorate it with `@register`, and run
`noisescope.testing.check_noise` over it.
"""

from .bits import BitFlip
from .family import NOISES, Measured, Noise, make_noise, register
from .formats import NumberFormat, format_noise
from .gaussian import AbsoluteGaussian, RelativeBias, RelativeGaussian, SystematicBias, Uniform
from .stuck import StuckAt

__all__ = [
    "NOISES",
    "AbsoluteGaussian",
    "BitFlip",
    "Measured",
    "Noise",
    "NumberFormat",
    "RelativeBias",
    "RelativeGaussian",
    "StuckAt",
    "SystematicBias",
    "Uniform",
    "format_noise",
    "make_noise",
    "register",
]
