"""Uniform and normal numbers for a key, drawn fast: most of what dense noise costs is drawing it.

torch draws on one thread of a CPU, 32 bits at a time. Here the bits come from numpy's SFC64, 64 at a time, and torch
makes numbers of them on all its threads, by the inverse of the distribution function; the bits do not depend on how
many these are. On other devices torch's own generator draws.

A float32 uniform is a multiple of 2^-31 in (-1, 1), rounded; the largest normal is 5.4, beyond which lies one value in
seventeen million.
"""

from collections.abc import Iterator
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from ..keys import Key

__all__ = ["Draw", "parts"]

PART = 2**18
"""elements drawn at once on a CPU: a megabyte, so that a draw and its use stay in cache"""

_BITS = {torch.float32: (np.int32, 32), torch.float64: (np.int64, 64)}


def parts(value: Tensor) -> Iterator[Tensor]:
    """The tensor in parts that share its memory, in a fixed order.

    Parts depend on shape and device only, never on the scale, so draws are common across scales.
    """
    if value.device.type != "cpu" or not value.is_contiguous() or value.numel() <= PART:
        yield value
        return
    yield from torch.split(value.view(-1), PART)


class Draw:
    """The numbers of one key on one device, in the order they are asked for."""

    def __init__(self, key: Key, device: torch.device) -> None:
        self._bits = np.random.SFC64(key.digest) if device.type == "cpu" else None
        self._generator = None if device.type == "cpu" else key.generator(device)

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers from (-1, 1), in the shape, dtype (float32 or float64) and device of `like`."""
        if self._bits is None:
            return torch.empty_like(like).uniform_(-1.0, 1.0, generator=self._generator)
        integer, width = _BITS[like.dtype]
        raw = self._bits.random_raw(-(-like.numel() * width // 64)).view(integer)[: like.numel()]
        # the largest factor by which no integer becomes 1, where the inverse is infinite
        below_one = 1 - torch.finfo(like.dtype).eps / 2
        return torch.from_numpy(raw).to(like.dtype).mul_(2.0 ** (1 - width) * below_one).view(like.shape)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers, in the shape, dtype and device of `like`."""
        if self._bits is None:
            return torch.empty_like(like).normal_(generator=self._generator)
        return self.uniform(like).erfinv_().mul_(sqrt(2.0))
