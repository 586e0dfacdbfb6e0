"""In how many samples a channel is an outlier, and in how many because of one token alone: two numbers a channel.

A sample is a row of one forward pass, padding left out. Let `p[c]` be the largest abs of channel c over the sample's
tokens, and `m` the median of `p` over the channels, the lower one of two (of the channels that are not zero, should
the median be zero). Then, in this sample,

- c is an **outlier** if p[c] > threshold * m;
- it is one by a **single token** if moreover all tokens but the largest are at most threshold * m and at most half
  of p[c]: without that token the channel would be no outlier, and it is not one of several of about its size. A
  sample of one token cannot tell and is not counted here.

A channel's persistence is the share of samples in which it is an outlier. Values that are not finite read 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..sites import Site
from .budget import Budget
from .scratch import CHUNK, DEVICE_CHUNK
from .sequences import Sequences

__all__ = ["Persistence", "PersistenceTally", "SampleCounts", "lower_median"]

_COUNTS = 2  # int64 numbers of a channel: outlier samples, and those by a single token


@dataclass(frozen=True)
class Persistence:
    """How often one site's channels were outliers: int64 tensors on the CPU, one element per channel."""

    threshold: float
    """the ratio to the median above which a channel is an outlier in a sample"""
    samples: int
    """samples seen"""
    outlier_samples: Tensor
    """of these, those in which the channel is an outlier"""
    single_token_samples: Tensor
    """of those, the ones in which a single token makes it one"""

    @property
    def share(self) -> Tensor:
        """Persistence: the share of samples in which the channel is an outlier, float64; 0 if none was seen."""
        return self.outlier_samples.double() / max(self.samples, 1)


class PersistenceTally:
    """The running counts of one site. `fold` adds the samples of a forward pass, `read` gives what is known so far."""

    def __init__(self, width: int, threshold: float, device: torch.device) -> None:
        self._counts = torch.zeros(_COUNTS, width, dtype=torch.int64, device=device)
        self._threshold = threshold
        self._samples = 0

    @property
    def width(self) -> int:
        """Number of channels."""
        return self._counts.shape[1]

    def fold(self, value: Tensor, sequences: Sequences) -> None:
        """Adds the value of a forward pass."""
        value = sequences.arrange(value)
        real = sequences.padding.real.to(value.device) if sequences.padding is not None else None
        peaks = _peaks(value, real)
        bar = self._threshold * lower_median(peaks).unsqueeze(1)
        over = peaks > bar
        self._samples += sequences.samples
        self._counts[0] += over.sum(0)
        if real is not None:
            over &= real.sum(1, keepdim=True) > 1
        if sequences.tokens > 1:
            single = _single_sparse if value.is_cpu else _single_dense
            self._counts[1] += single(value, real, over, torch.minimum(bar, peaks / 2))

    def read(self) -> Persistence:
        """The counts of everything folded so far."""
        over, single = self._counts.cpu().clone()
        return Persistence(self._threshold, self._samples, over, single)


class SampleCounts:
    """The persistence tallies of a capture's sites, within its budget; None for a site whose rows are no samples."""

    def __init__(self, threshold: float, grouped: frozenset[str], budget: Budget) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 1 <= threshold < torch.inf:
            raise InputError(f"persistence: got {threshold!r}, expected the ratio of an outlier, a number >= 1")
        self.threshold = float(threshold)
        self._grouped = grouped
        self._budget = budget
        self._tallies: dict[str, PersistenceTally | None] = {}

    def bytes_expected(self, site: Site, width: int) -> int:
        """Memory that a site of this many channels will take; 0 once it has taken it."""
        known = site.name in self._tallies or site.module in self._grouped
        return 0 if known else width * _COUNTS * 8

    def fold(self, site: Site, value: Tensor, sequences: Sequences | None) -> None:
        """Adds a value of a site, which is given up once its rows are not those of sequences, or its width changes."""
        width = value.shape[-1] if value.ndim else 1
        tally = self._tallies.get(site.name)
        if site.module in self._grouped or sequences is None or (tally is not None and tally.width != width):
            self._tallies[site.name] = None
            return
        if site.name not in self._tallies:
            self._budget.take(self.bytes_expected(site, width), f"the persistence of {site.name}")
            tally = self._tallies[site.name] = PersistenceTally(width, self.threshold, value.device)
        if tally is not None:
            tally.fold(value, sequences)

    def read(self) -> dict[str, Persistence | None]:
        """Site name -> its counts so far."""
        return {name: tally.read() if tally is not None else None for name, tally in self._tallies.items()}


def lower_median(peaks: Tensor) -> Tensor:
    """The median over the last dimension, the lower of two; of what is not 0 if that is 0, and 0 if all is.

    Channels that read nan are left out.
    """
    median = peaks.nanmedian(-1).values
    if not peaks.is_cpu or bool((median == 0).any()):
        alive = peaks.masked_fill(peaks == 0, torch.nan).nanmedian(-1).values
        median = median.where(median != 0, alive)
    return median.nan_to_num(0.0)


# --- what the values say ----------------------------------------------------------------------------------------


def _peaks(value: Tensor, real: Tensor | None) -> Tensor:
    """The largest abs of each sample's channels, rows x channels, in float32 or float64."""
    rows, tokens, width = value.shape
    step = max(1, (CHUNK if value.is_cpu else DEVICE_CHUNK) // (rows * width))
    found = [
        _peaks_of_piece(value[:, first : first + step], None if real is None else real[:, first : first + step])
        for first in range(0, tokens, step)
    ]
    return found[0] if len(found) == 1 else torch.stack(found).amax(0)


def _peaks_of_piece(piece: Tensor, real: Tensor | None) -> Tensor:
    if real is not None:
        piece = piece.masked_fill(~real.unsqueeze(2), 0)
    largest = _widened(torch.maximum(piece.amax(1), -piece.amin(1)))  # reads twice, but writes no copy of the value
    if piece.is_cpu and bool(largest.sum().isfinite()):
        return largest
    return _sizes(piece).amax(1)


def _single_sparse(value: Tensor, real: Tensor | None, over: Tensor, level: Tensor) -> Tensor:
    """Samples of each channel in which one token alone is above the level; looks at the outliers' tokens only."""
    found = torch.zeros(value.shape[2], dtype=torch.int64, device=value.device)
    for row, channel in (part.unbind(1) for part in over.nonzero().split(max(1, CHUNK // value.shape[1]))):
        above = _sizes(value[row, :, channel]) > level[row, channel].unsqueeze(1)
        if real is not None:
            above &= real[row]
        found += torch.bincount(channel[above.sum(1) == 1], minlength=len(found))
    return found


def _single_dense(value: Tensor, real: Tensor | None, over: Tensor, level: Tensor) -> Tensor:
    """The same without asking which are outliers: on another device than the CPU one would wait for the answer."""
    tokens = torch.zeros_like(over, dtype=torch.int64)
    step = max(1, DEVICE_CHUNK // level.numel())
    for first in range(0, value.shape[1], step):
        above = _sizes(value[:, first : first + step]) > level.unsqueeze(1)
        if real is not None:
            above &= real[:, first : first + step].unsqueeze(2)
        tokens += above.sum(1)
    return (over & (tokens == 1)).sum(0)


def _sizes(values: Tensor) -> Tensor:
    """Absolute values, 0 where they are not finite."""
    return _widened(values).abs().nan_to_num(nan=0.0, posinf=0.0)


def _widened(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
