"""Working memory: values are looked at some rows at a time, in buffers that all sites share.

Fresh memory is dear (every page of it is a trap into the kernel) and a large value does not fit the cache, so a
capture touches neither more than once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Scratch", "Work"]

CHUNK = 2**18
"""elements worked on at a time on a CPU: enough for its threads, and they stay in its cache"""
DEVICE_CHUNK = 2**21
"""the same on other devices, where the number of kernels counts"""

_WHOLE = {"place": torch.int64, "one": torch.int32}


class Work(NamedTuple):
    """Buffers in the shape of one chunk of rows; all but `one` are as they were left."""

    plain: Tensor
    size: Tensor
    deviation: Tensor
    place: Tensor
    one: Tensor
    """all ones, for those who count"""


class Scratch:
    """The buffers of one capture, as large as its largest chunk."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def chunks(self, rows: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Work]]:
        """Some rows at a time, in that dtype, each with buffers of its shape."""
        step = max(1, (CHUNK if rows.is_cpu else DEVICE_CHUNK) // rows.shape[1])
        work = None
        for chunk in rows.split(step):
            if work is None or len(chunk) < len(work.size):
                work = Work(*(self._view(name, chunk, _WHOLE.get(name, dtype)) for name in Work._fields))
            yield chunk if chunk.dtype == dtype else work.plain.copy_(chunk), work

    def _view(self, name: str, chunk: Tensor, dtype: torch.dtype) -> Tensor:
        key = name, dtype, chunk.device
        held = self._held.get(key)
        if held is None or held.numel() < chunk.numel():
            held = self._held[key] = torch.ones(chunk.numel(), dtype=dtype, device=chunk.device)
        return held[: chunk.numel()].view(chunk.shape)
