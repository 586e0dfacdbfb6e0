"""Stuck cells: a fixed share of elements or channels is forced to one value, in every step the same ones."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import InputError, unknown_name
from ..keys import Key
from ..specs import check_scale
from .family import Measured, register

__all__ = ["StuckAt"]

UNITS = ("element", "channel")


@register
@dataclass(frozen=True)
class StuckAt:
    """A share `scale` of the elements, or of the channels (last dimension), forced to `value`.

    Which ones depends on seed, site and trial, not on the step: the cell is broken, not the moment. At least one
    cell is stuck at any scale above 0. A larger scale sticks the same cells and more.
    """

    scale: float
    value: float = 0.0
    unit: str = "element"
    name: ClassVar[str] = "stuck_at"
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check_scale(self.scale) > 1:
            raise InputError(f"stuck_at: got scale {self.scale}, expected a share between 0 and 1")
        object.__setattr__(self, "scale", float(self.scale))
        if self.unit not in UNITS:
            raise unknown_name("unit of stuck_at", self.unit, UNITS)
        if not isinstance(self.value, (int, float)) or not math.isfinite(self.value):
            raise InputError(f"stuck_at: got value {self.value}, expected a finite number")

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        """Force the stuck cells, in place."""
        cells = value.shape[-1] if self.unit == "channel" and value.ndim else value.numel()
        if not cells:
            return
        if value.is_floating_point() and abs(self.value) > torch.finfo(value.dtype).max:
            dtype = str(value.dtype).removeprefix("torch.")
            raise InputError(f"stuck_at: {self.value:g} cannot be held by {dtype}; use a smaller value")
        draw = torch.rand(cells, device=value.device, generator=key.fixed().generator(value.device))
        count = min(cells, max(1, round(scale * cells)))
        stuck = torch.zeros(cells, dtype=torch.bool, device=value.device)
        stuck[draw.topk(count, largest=False).indices] = True
        value.masked_fill_(stuck if self.unit == "channel" and value.ndim else stuck.view(value.shape), self.value)

    def dose(self, seen: Measured) -> float:
        """Share of elements that changed: stuck cells that already held the value do not count."""
        return seen.changed / seen.elements if seen.elements else 0.0
