"""Memory for what is kept of a call, cut from slabs of a few megabytes.

A small piece that stays where large values come and go leaves the allocator with holes that the next value does not fit
into, and memory that is new has to be brought in page by page: on the default model that took as long as all else that
recording does.

For the same reason glibc is made to keep what is freed. It returns the end of its heap to the system once twice as much
is free there as the largest block had that was ever freed, counting none above 32 MB, and values that come and go at
that end would be new each time. So a block just below that is taken and freed first.
"""

from math import prod

import torch
from torch import Tensor

__all__ = ["Slabs"]

_BYTES = 8 << 20
_FREED_FIRST = 31 << 20


class Slabs:
    """Hands out tensors of one device that live as long as whoever holds them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.empty(_FREED_FIRST, dtype=torch.uint8, device="cpu")  # its pages are never touched
        self._slabs: dict[torch.dtype, tuple[Tensor, int]] = {}
        """what is left of the slab of each dtype begins there"""

    def take(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros."""
        count = prod(shape)
        slab, start = self._slabs.get(dtype, (None, 0))
        if slab is None or start + count > slab.numel():
            slab, start = torch.zeros(max(_BYTES // dtype.itemsize, count), dtype=dtype, device=self._device), 0
        self._slabs[dtype] = slab, start + count
        return slab[start : start + count].view(shape)

    def keep(self, value: Tensor) -> Tensor:
        """A copy of a tensor."""
        return self.take(*value.shape, dtype=value.dtype).copy_(value)
