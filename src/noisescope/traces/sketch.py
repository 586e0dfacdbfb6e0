"""The sketch: 2039 numbers that stand for a value of any size, so that two of them tell how far two values are apart.

    S(x)[b] = sum of sign(i) x[i] over all i with i mod 2039 = b

It is linear, S(y) - S(x) = S(y - x), and with random signs the sum of its squares has the mean |y - x|^2, whatever
the error looks like. Its relative standard deviation is at most sqrt(2 / 2039) = 3.1% for an error that is spread over
many buckets. 2039 is a prime, so that neither a channel nor a token falls into few of them.

Signs are bits of Philox under the trace's seed, whose stream numpy promises never to change: a table of them, entered
at another place for every call and every 2039 * 512 elements of a call.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from .slabs import Slabs

__all__ = ["BUCKETS", "CHUNK", "STANDARD_ERROR", "Sketcher", "keyed"]

BUCKETS = 2039
_ROWS = 512
CHUNK = BUCKETS * _ROWS
"""elements that are looked at together: four megabytes in float32, which a cache holds"""
STANDARD_ERROR = (2 / BUCKETS) ** 0.5
"""of a squared error norm, relative"""


def keyed(seed: int, *parts: object) -> np.random.Generator:
    """Random numbers that depend on these words alone, on every machine."""
    digest = blake2b(repr((seed, *parts)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


class Sketcher:
    """Sketches values on one device, under one seed."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._table = _signs(seed).to(device)
        self._scratch, self._wide = torch.empty(2, CHUNK, device=device)
        self.slabs = Slabs(device)

    def sketch(self, chunk: Tensor, call: int, number: int) -> Tensor:
        """Of chunk `number` of a site's value at its `call`-th call, in float32."""
        start = _entry(self._seed, call, number)
        length = chunk.numel()
        rows = -(-length // BUCKETS)
        signed = self._scratch[: rows * BUCKETS]
        torch.mul(chunk, self._table[start : start + length], out=signed[:length])
        if length < rows * BUCKETS:
            signed[length:].zero_()
        return torch.sum(signed.view(rows, BUCKETS), 0)

    def widened(self, chunk: Tensor) -> Tensor:
        """A chunk in float32; the next one is written over it."""
        return chunk if chunk.dtype == torch.float32 else self._wide[: chunk.numel()].copy_(chunk)


@lru_cache(maxsize=2)
def _signs(seed: int) -> Tensor:
    """Twice as many as a chunk has elements, so that one may begin anywhere in the first half."""
    bits = np.unpackbits(keyed(seed, "signs").bit_generator.random_raw(CHUNK // 32 + 1).view(np.uint8))
    return torch.from_numpy(bits[: 2 * CHUNK].astype(np.float32)).mul_(2).sub_(1)


@lru_cache(maxsize=4096)
def _entry(seed: int, call: int, number: int) -> int:
    return int(keyed(seed, "entry", call, number).integers(CHUNK))
