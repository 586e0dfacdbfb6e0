"""A digest of all bits of a site's values: what is equal has equal ones on every machine, and little else has.

Hashing every byte would take longer than everything else that is recorded. Each call is therefore cut into the chunks
that it is sketched in, a chunk into words of 64 bits, little endian, the last one filled up with zeros, and of these

    row r       the sum of words 127 r to 127 r + 126
    column c    the sum of words c, c + 128, c + 256, ...       for c below 128

modulo 2^64 are hashed: all rows, then all columns, one chunk and one call after the other, by BLAKE2b to 8 bytes. Two
words are never in the same row and in the same column, so that neither one word that changed nor two that changed
places are missed, nor two numbers that changed their signs; and as 127 is odd, nor is a sign that changed everywhere.
"""

from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.functional import pad

from .sketch import CHUNK

__all__ = ["Bits", "bits_of"]

ROW, COLUMNS = 127, 128


class Bits:
    """The digest, as it grows."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=8)

    def add(self, chunk: Tensor) -> None:
        """Adds the next chunk of a call, in one dimension."""
        words = _words(chunk)
        sums = torch.cat([_rows(words), _columns(words)])
        self._digest.update(sums.cpu().numpy().astype("<i8", copy=False).tobytes())

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
    data = chunk.contiguous().view(torch.uint8)
    if rest := -len(data) % 8:
        data = pad(data, (0, rest))
    return (data if data.data_ptr() % 8 == 0 else data.clone()).view(torch.int64)


def _rows(words: Tensor) -> Tensor:
    whole = len(words) // ROW * ROW
    found = words[:whole].view(-1, ROW).sum(1)
    return found if whole == len(words) else torch.cat([found, words[whole:].sum().view(1)])


def _columns(words: Tensor) -> Tensor:
    whole = len(words) // COLUMNS * COLUMNS
    found = words[:whole].view(-1, COLUMNS).sum(0)
    found[: len(words) - whole] += words[whole:]
    return found
