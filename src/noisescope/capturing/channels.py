"""Streaming statistics of the channels of one site: memory depends on the number of channels, never on that of rows.

A channel's values are summed as deviations from a centre, the mean of the first of them, some rows at a time in their
own dtype but at least float32 and then in float64, so that a small spread around a large mean survives: with n rows
seen, the relative rounding error of a variance is that of a float32, 1e-7, times at most n / 16, and that only if one
of the first 16 rows is what the variance consists of. Quantiles are the business of `histogram`.
"""

from dataclasses import dataclass
from math import isfinite, nan

import torch
from torch import Tensor

from .histogram import BINS, Histogram
from .scratch import Scratch

__all__ = ["ChannelStatistics", "ChannelTally", "tally_bytes"]

_SUMS = 6  # float64 numbers of a channel: count, centre, largest abs, sums of abs, deviations and their squares
_SMALL = 1e-15  # between this and its inverse the squares of float32 are summed as float32, on a CPU
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
        """channels, from the first, that have a centre"""

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
        self._find_centres(rows[:_FIRST], dtype)
        (count, centre, max_abs), sums = self._sums[:3, : rows.shape[1]], self._sums[3:, : rows.shape[1]]
        narrow = centre.to(dtype)
        found = torch.empty(4, rows.shape[1], dtype=dtype, device=rows.device)
        largest, abs_sum, off, squares, found_sums = *found, found[1:]
        counting = self._histogram.counting(len(rows))
        for chunk, work in scratch.chunks(rows, dtype):
            size = torch.abs(chunk, out=work)
            torch.amax(size, 0, out=largest)
            top = float(largest.max()) if rows.is_cpu else nan  # of another device one does not ask: one would wait
            if dtype == torch.float32 and isfinite(top) and not (top == 0 or _SMALL < top < 1 / _SMALL):
                self.fold(chunk.double(), scratch)
                count -= len(chunk)
                continue
            wrong = None if isfinite(top) else self._take_out(size, largest)
            torch.sum(size, 0, out=abs_sum)
            counting.add(size, wrong)
            deviation = torch.sub(chunk, narrow, out=work)
            if wrong is not None:
                count -= wrong.sum(0)
                deviation.masked_fill_(wrong, 0)
            torch.sum(deviation, 0, out=off)
            torch.sum(deviation.square_(), 0, out=squares)
            torch.maximum(max_abs, largest, out=max_abs)
            sums += found_sums
        count += len(rows)

    def _find_centres(self, rows: Tensor, dtype: torch.dtype) -> None:
        """Gives channels that have no centre the mean of what is finite in these rows."""
        known, self._centred = self._centred, max(self._centred, rows.shape[1])
        if known < self._centred:
            rows = rows[:, known:].to(dtype)
            means = rows.mean(0)
            if not rows.is_cpu or not isfinite(means.sum()):
                finite = rows.isfinite()
                means = (rows.where(finite, 0) / finite.sum(0).clamp(min=1)).sum(0)
            self._sums[1, known : self._centred] = means

    def _take_out(self, size: Tensor, largest: Tensor) -> Tensor:
        """Sets what is not finite to 0 and says where that was; `largest` is corrected too."""
        wrong = ~size.isfinite()
        torch.amax(size.masked_fill_(wrong, 0), 0, out=largest)
        self._non_finite += wrong.sum()
        return wrong

    def read(self) -> ChannelStatistics:
        """The statistics of everything folded so far."""
        count, centre, max_abs, sum_abs, off, squares = self._sums.cpu()
        off = off / count

        def known(found: Tensor) -> Tensor:
            return torch.where(count > 0, found, torch.nan)

        return ChannelStatistics(
            count=count.long(),
            max_abs=known(max_abs),
            mean=known(centre + off),
            std=known((squares / count - off * off).clamp(min=0).sqrt()),
            mean_abs=known(sum_abs / count),
            q50_abs=known(self._histogram.quantile(0.5, max_abs)),
            q99_abs=known(self._histogram.quantile(0.99, max_abs)),
            non_finite=int(self._non_finite),
        )
