"""Working memory: values are looked at some rows at a time, in a buffer that all sites share.

Fresh memory is dear (every page of it is a trap into the kernel) and a large value does not fit the cache, so a
capture touches neither more than once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["Scratch"]

CHUNK = 2**20
"""elements worked on at a time on a CPU: enough for its threads, and they stay in the cache that these share"""
DEVICE_CHUNK = 2**21
"""the same on other devices, where the number of kernels counts"""


class Scratch:
    """The buffers of one capture, as large as its largest chunk."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def chunks(self, rows: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Some rows at a time, in that dtype, each with a buffer of its shape and with arbitrary contents."""
        step = max(1, (CHUNK if rows.is_cpu else DEVICE_CHUNK) // rows.shape[1])
        for chunk in rows.split(step):
            plain = chunk if chunk.dtype == dtype else self._view("plain", chunk, dtype).copy_(chunk)
            yield plain, self._view("work", chunk, dtype)

    def _view(self, name: str, chunk: Tensor, dtype: torch.dtype) -> Tensor:
        key = name, dtype, chunk.device
        held = self._held.get(key)
        if held is None or held.numel() < chunk.numel():
            held = self._held[key] = torch.empty(chunk.numel(), dtype=dtype, device=chunk.device)
        return held[: chunk.numel()].view(chunk.shape)
