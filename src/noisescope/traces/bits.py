"""A digest of all bits of a site's values: what is equal has equal ones on every machine, and little else has.

Hashing every byte would take longer than everything else that is recorded. Each call is therefore cut into the chunks
that it is sketched in, a chunk into words of 64 bits, little endian, the last one filled up with zeros, and the sums

    row r       of words 127 r to 127 r + 126, modulo 2^64

are hashed, one chunk and one call after the other, by BLAKE2b to 8 bytes. No bit that changed alone is missed, nor a
row that changed its place, nor, as 127 is odd, a sign that changed everywhere. Changes that cancel within a row are:
two words that changed places there, or two that lost their uppermost bit.
"""

from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.functional import pad

from .sketch import CHUNK

__all__ = ["Bits", "bits_of"]

ROW = 127
"""words of a row"""


class Bits:
    """The digest, as it grows."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=8)

    def add(self, chunk: Tensor) -> None:
        """Adds the next chunk of a call, in one dimension."""
        words = _words(chunk)
        whole = len(words) // ROW * ROW
        sums = words[:whole].view(-1, ROW).sum(1)
        self._digest.update(sums.cpu().numpy().astype("<i8", copy=False).data)
        if whole < len(words):
            self._digest.update(int(words[whole:].sum()).to_bytes(8, "little", signed=True))

    @property
    def written(self) -> str:
        """16 hexadecimal digits."""
        return self._digest.hexdigest()


def bits_of(values: Iterable[Tensor]) -> str:
    """The digest of calls with these values."""
    found = Bits()
    for value in values:
        for chunk in value.reshape(-1).split(CHUNK) if value.numel() else ():
            found.add(chunk)
    return found.written


def _words(chunk: Tensor) -> Tensor:
    """In 64 bits; copied where it is not made of whole words, or does not begin where one may."""
    chunk = chunk.contiguous()
    if rest := -chunk.nbytes % 8:
        chunk = pad(chunk.view(torch.uint8), (0, rest))
    return (chunk if chunk.data_ptr() % 8 == 0 else chunk.clone()).view(torch.int64)
