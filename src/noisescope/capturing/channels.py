"""Streaming statistics of the channels of one site: memory depends on the number of channels, never on that of rows.

A value is summed as deviations from the mean so far, in its own dtype but at least float32, and joined in float64 to
those before it by

    n = n_a + n_b,   d = mean_b - mean_a,   mean = mean_a + d n_b / n,   M2 = M2_a + M2_b + d^2 n_a n_b / n

so that a small spread around a large mean survives. Quantiles are the business of `histogram`.
"""

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from .histogram import BINS, Histogram
from .scratch import Scratch

__all__ = ["ChannelStatistics", "ChannelTally", "tally_bytes"]

_SUMS = 5  # float64 numbers of a channel: count, mean, squared deviations, sum of abs, largest abs
_FIRST = 16  # rows of the first value that say where a channel's values lie


@dataclass(frozen=True)
class ChannelStatistics:
    """What one site's channels did: float64 tensors on the CPU, one element per channel.

    Values that are not finite are left out of everything but `non_finite`; a channel without any finite value reads
    nan. `std` is that of the population. `q50_abs` and `q99_abs` are quantiles of abs(x), to the resolution that
    `histogram` states; the rest is exact up to rounding.
    """

    count: Tensor
    """finite values seen, int64"""
    max_abs: Tensor
    mean: Tensor
    std: Tensor
    mean_abs: Tensor
    q50_abs: Tensor
    q99_abs: Tensor
    non_finite: int
    """values of the whole site that were infinite or not a number"""

    @property
    def channels(self) -> int:
        """Number of channels: the length of the value's last dimension."""
        return self.count.numel()

    @property
    def tokens(self) -> int:
        """Rows seen, counted where a channel was finite most often."""
        return int(self.count.max()) if self.channels else 0


def tally_bytes(width: int) -> int:
    """Memory that a tally of this many channels holds."""
    return width * (BINS * 4 + _SUMS * 8)


class ChannelTally:
    """The running statistics of one site. `fold` adds values, `read` gives what is known so far.

    A site whose last dimension varies (attention scores while text is generated) counts each channel where it exists.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._sums = torch.zeros(_SUMS, width, dtype=torch.float64, device=device)
        self._histogram = Histogram(width, device)
        self._non_finite = torch.zeros((), dtype=torch.int64, device=device)
        self._centred = 0
        """channels, from the first, whose mean is a fair guess of where their values lie"""

    @property
    def width(self) -> int:
        """Number of channels."""
        return self._sums.shape[1]

    def widen(self, width: int) -> None:
        """Makes room for more channels, which have seen nothing yet."""
        self._sums = torch.cat([self._sums, self._sums.new_zeros(_SUMS, width - self.width)], dim=1)
        self._histogram.widen(width)

    def fold(self, value: Tensor, scratch: Scratch) -> None:
        """Adds a value; its last dimension are the channels, of which there are at most `width`."""
        rows = value.reshape(-1, value.shape[-1] if value.ndim else 1)
        if not rows.numel():
            return
        dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        centre = self._centre(rows[:_FIRST], dtype).to(dtype)
        part = _Part.nothing(centre)
        counting = self._histogram.counting(len(rows))
        for chunk, work in scratch.chunks(rows, dtype):
            size = torch.abs(chunk, out=work)
            wrong = part.add_sizes(size)
            counting.add(size, wrong)
            part.add_deviations(torch.sub(chunk, centre, out=work), wrong)
        self._merge(part, centre)
        self._non_finite += rows.numel() - part.finite.sum()

    def _centre(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """A value near each channel's mean: the mean of all before, or of these rows, or 0 if one is not finite."""
        known = self._sums[:2, : rows.shape[1]]
        if self._centred >= rows.shape[1]:
            return known[1]
        self._centred = rows.shape[1]
        start = rows.mean(0, dtype=dtype).nan_to_num_(0.0, 0.0, 0.0)
        return torch.where(known[0] > 0, known[1], start)

    def _merge(self, part: "_Part", centre: Tensor) -> None:
        """Joins what one value adds to what is known from all before it."""
        count, mean, squares, sum_abs, max_abs = self._sums[:, : centre.numel()]
        more_abs, off, off_squares = part.sums
        seen, total = part.finite.clamp(min=1), (count + part.finite).clamp(min=1)
        delta = centre + off / seen - mean
        squares += off_squares - off * off / seen + delta * delta * (count * part.finite / total)
        mean += delta * (part.finite / total)
        count += part.finite
        sum_abs += more_abs
        torch.maximum(max_abs, part.max_abs, out=max_abs)

    def read(self) -> ChannelStatistics:
        """The statistics of everything folded so far."""
        count, mean, squares, sum_abs, max_abs = self._sums.cpu()

        def known(found: Tensor) -> Tensor:
            return torch.where(count > 0, found, torch.nan)

        return ChannelStatistics(
            count=count.long(),
            max_abs=known(max_abs),
            mean=known(mean),
            std=known((squares / count).clamp(min=0).sqrt()),
            mean_abs=known(sum_abs / count),
            q50_abs=known(self._histogram.quantile(0.5, max_abs)),
            q99_abs=known(self._histogram.quantile(0.99, max_abs)),
            non_finite=int(self._non_finite),
        )


class _Part(NamedTuple):
    """What one value adds to each channel."""

    finite: Tensor
    max_abs: Tensor
    sums: Tensor
    """of abs values, of deviations from the centre, of their squares"""
    found: Tensor
    """room for the same of one chunk, in the dtype of the centre"""

    @classmethod
    def nothing(cls, centre: Tensor) -> "_Part":
        """Zero everywhere."""
        channels = centre.numel()
        return cls(
            torch.zeros_like(centre, dtype=torch.int64),
            torch.zeros_like(centre),
            centre.new_zeros(3, channels, dtype=torch.float64),
            centre.new_empty(4, channels),
        )

    def add_sizes(self, size: Tensor) -> Tensor | None:
        """Adds the absolute values of some rows; which ones are not finite, and are 0 now, if any may be."""
        wrong = None
        torch.amax(size, 0, out=self.found[0])
        if not size.is_cpu or not isfinite(self.found[0].sum()):  # another device is not asked: one would wait for it
            wrong = ~size.isfinite()
            size.masked_fill_(wrong, 0)
            self.finite.sub_(wrong.sum(0))
            torch.amax(size, 0, out=self.found[0])
        self.finite.add_(len(size))
        torch.maximum(self.max_abs, self.found[0], out=self.max_abs)
        torch.sum(size, 0, out=self.found[1])
        return wrong

    def add_deviations(self, deviation: Tensor, wrong: Tensor | None) -> None:
        """Adds the deviations of the same rows, which it overwrites."""
        if wrong is not None:
            deviation.masked_fill_(wrong, 0)
        torch.sum(deviation, 0, out=self.found[2])
        torch.sum(deviation.square_(), 0, out=self.found[3])
        self.sums.add_(self.found[1:])
