"""Stand-in until the room of number formats is here: int8, symmetric."""

from dataclasses import dataclass

from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True)
class Format:
    """int8 with one scale for each slice along the axis, or for the tensor."""

    block: str = "channel"
    rounding: str = "nearest"

    def round(self, value: Tensor, *, axis: int = -1) -> Tensor:
        """The tensor as the format holds it."""
        largest = value.abs().amax() if self.block == "tensor" else value.abs().amax(axis, keepdim=True)
        scale = (largest / 127).clamp(min=1e-30)
        return (value / scale).round() * scale

    def __str__(self) -> str:
        return "int8" if self.block == "channel" else f"int8:{self.block}"


def parse_format(text: str | Format) -> Format:
    """A format by its name."""
    if isinstance(text, Format):
        return text
    name, _, block = text.partition(":")
    if name != "int8" or block not in ("", "channel", "tensor"):
        raise InputError(f"format: got {text}")
    return Format(block or "channel")
