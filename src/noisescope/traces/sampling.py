"""The sample: 1024 elements of a value, for everything that a norm does not tell.

Each of the 1024 slots holds one element, drawn evenly and by itself from all elements that the site has computed, over
all calls: the next call of n elements after N takes a slot with probability n / (N + n). Which elements these are
depends on the seed and the sizes of the calls alone, so that two devices sample the same.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .sketch import keyed
from .slabs import Slabs

__all__ = ["SLOTS", "Sample", "positions"]

SLOTS = 1024


class Sample:
    """The sample of one site, as it grows."""

    def __init__(self, seed: int) -> None:
        self.sizes: tuple[int, ...] = ()
        """elements of each call so far"""
        self.values: Tensor | None = None
        """float64"""
        self._seed = seed

    def fold(self, flat: Tensor, slabs: Slabs) -> None:
        """Adds the elements of a call."""
        self.sizes += (flat.numel(),)
        slots, where = _taken(self._seed, self.sizes, flat.device)
        if self.values is None:
            self.values = slabs.take(SLOTS, dtype=torch.float64)
        self.values.index_copy_(0, slots, flat.index_select(0, where).double())


def positions(seed: int, sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Slots x 2: the call and the element in it that each slot holds after calls of these sizes."""
    found = np.zeros((SLOTS, 2), dtype=np.int64)
    for call in range(len(sizes)):
        slots, where = _drawn(seed, sizes[: call + 1])
        found[slots] = np.stack([np.full(len(slots), call), where], axis=1)
    return found


@lru_cache(maxsize=256)
def _taken(seed: int, sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The slots that the last of these calls takes, and its elements that go there, in the order that they lie in."""
    slots, where = _drawn(seed, sizes)
    order = where.argsort()
    return torch.from_numpy(slots[order]).to(device), torch.from_numpy(where[order]).to(device)


def _drawn(seed: int, sizes: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not sizes[-1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    random = keyed(seed, "sample", sizes)
    slots = np.flatnonzero(random.random(SLOTS) < sizes[-1] / sum(sizes))
    return slots, random.integers(sizes[-1], size=len(slots))
