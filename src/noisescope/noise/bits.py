"""Bit flips: each element, with probability `scale`, has one bit of its representation inverted."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import InputError, unknown_name
from ..keys import Key
from ..specs import check_scale
from .drawing import parts
from .family import Measured, register

__all__ = ["BitFlip"]

FIELDS = ("sign", "exponent", "mantissa", "any")

_LAYOUT: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    # dtype: (integer of the same width, exponent bits, mantissa bits); the sign is the top bit
    torch.float32: (torch.int32, 8, 23),
    torch.float16: (torch.int16, 5, 10),
    torch.bfloat16: (torch.int16, 8, 7),
    torch.float8_e4m3fn: (torch.uint8, 4, 3),
    torch.float8_e5m2: (torch.uint8, 5, 2),
    torch.int8: (torch.uint8, 0, 7),
}


@register
@dataclass(frozen=True)
class BitFlip:
    """One inverted bit per struck element; `scale` is the probability that an element is struck.

    `field` is `sign`, `exponent`, `mantissa`, `any`, or a bit index counted from the lowest. Integers have a sign
    and a mantissa only. Exponent flips make infinities and NaN, as they do on hardware.
    """

    scale: float
    field: str | int = "any"
    name: ClassVar[str] = "bit_flip"
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check_scale(self.scale) > 1:
            raise InputError(f"bit_flip: got scale {self.scale}, expected a probability between 0 and 1")
        object.__setattr__(self, "scale", float(self.scale))
        if isinstance(self.field, bool) or not isinstance(self.field, (int, str)):
            raise InputError(f"bit_flip: got field {self.field!r}, expected a bit index or one of {' '.join(FIELDS)}")
        if isinstance(self.field, int) and not 0 <= self.field < 32:
            raise InputError(f"bit_flip: got bit {self.field}, expected an index from 0 to 31")
        if isinstance(self.field, str) and self.field not in FIELDS:
            raise unknown_name("bit field", self.field, FIELDS)

    def bits(self, dtype: torch.dtype) -> range:
        """The bit positions that can be struck in this dtype."""
        if dtype not in _LAYOUT:
            supported = " ".join(str(known).removeprefix("torch.") for known in _LAYOUT)
            raise InputError(f"bit_flip: cannot flip bits of {str(dtype).removeprefix('torch.')} ({supported})")
        _, exponent, mantissa = _LAYOUT[dtype]
        top = exponent + mantissa
        if isinstance(self.field, int):
            found = range(self.field, self.field + 1) if self.field <= top else range(0)
        else:
            found = {
                "sign": range(top, top + 1),
                "exponent": range(mantissa, top),
                "mantissa": range(mantissa),
                "any": range(top + 1),
            }[self.field]
        if not found:
            raise InputError(f"bit_flip: {str(dtype).removeprefix('torch.')} has no bit {self.field!r}")
        return found

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        """Invert one bit of each struck element, in place."""
        bits = self.bits(value.dtype)
        width = value.element_size() * 8
        integer = _LAYOUT[value.dtype][0]
        signed = integer is not torch.uint8
        masks = torch.tensor(
            [_wrap(1 << bit, width) if signed else 1 << bit for bit in bits], dtype=integer, device=value.device
        )
        generator = key.generator(value.device)
        for part in parts(value):
            draw = torch.rand(part.shape, dtype=torch.float64, device=part.device, generator=generator)
            which = torch.randint(len(bits), part.shape, device=part.device, generator=generator)
            part.view(integer).bitwise_xor_(masks[which] * (draw < scale))

    def dose(self, seen: Measured) -> float:
        """Share of elements that changed."""
        return seen.changed / seen.elements if seen.elements else 0.0


def _wrap(number: int, width: int) -> int:
    """The same bits read as a signed integer of that width."""
    return number - (1 << width) if number >> (width - 1) else number
