"""Memory for what is kept of a call, cut from slabs of a few megabytes.

A small piece that stays where large values come and go leaves the allocator with holes that the next value does not fit
into, and memory that is new has to be brought in page by page: on the default model that took as long as all else that
recording does.
"""

from math import prod

import torch
from torch import Tensor

__all__ = ["Slabs"]

_BYTES = 8 << 20


class Slabs:
    """Hands out tensors of one device that live as long as whoever holds them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free = self._slab(_BYTES)

    def take(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros."""
        size = -(-prod(shape) * dtype.itemsize // 16) * 16
        if size > self._free.numel():
            self._free = self._slab(max(_BYTES, size))
        piece, self._free = self._free[:size], self._free[size:]
        return piece[: prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def keep(self, value: Tensor) -> Tensor:
        """A copy of a tensor."""
        return self.take(*value.shape, dtype=value.dtype).copy_(value)

    def _slab(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._device)
