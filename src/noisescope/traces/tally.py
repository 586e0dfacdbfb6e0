"""What is recorded of one site: exact statistics, the sketch and the sample, folded call by call.

Elements that are not finite are counted and stand as 0 elsewhere.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from .bits import Bits
from .moments import Moments, moments_of
from .sampling import SLOTS, Sample
from .sketch import BUCKETS, CHUNK, Sketcher
from .slabs import Slabs

__all__ = ["TOP", "SiteRecord", "SiteTally"]

TOP = 8
"""channels with the largest abs that are named"""


@dataclass(frozen=True, eq=False)
class SiteRecord:
    """One site of a trace, all its calls together."""

    count: int
    non_finite: int
    mean: float
    std: float
    min: float
    max: float
    norm: float
    """root of the sum of squares"""
    bits: str
    """a digest of all bits; equal values have equal ones"""
    sizes: tuple[int, ...]
    """elements of each call"""
    width: int
    """channels: the last dimension of the last call"""
    top_channels: tuple[tuple[int, float], ...]
    """channel and its largest abs, the largest first"""
    sketch: Tensor
    """float32"""
    sample: Tensor
    """float32; float64 if the values are"""


class SiteTally:
    """Folds the values of one site."""

    def __init__(self, seed: int) -> None:
        self._sketch: Tensor | None = None
        self._sample = Sample(seed)
        self._moments = Moments()
        self._non_finite = 0
        self._ends: Tensor | None = None
        """largest and smallest of each channel"""
        self._bits = Bits()
        self._dtype: torch.dtype | None = None

    def fold(self, value: Tensor, sketcher: Sketcher) -> None:
        """Adds one call's value."""
        self._dtype = value.dtype
        flat, call = value.reshape(-1), len(self._sample.sizes)
        width = value.shape[-1] if value.ndim else 1
        if flat.numel():
            seen = _look(flat, width, call, sketcher, self._bits)
            if not isfinite(seen.moments.around):
                wrong = ~flat.isfinite()
                self._non_finite += int(wrong.sum())
                flat = flat.masked_fill(wrong, 0)
                seen = _look(flat, width, call, sketcher)
            self._moments = self._moments.joined(seen.moments)
            if self._sketch is None:
                self._sketch = sketcher.slabs.take(BUCKETS, dtype=torch.float64)
            self._sketch += seen.sketch
            self._widen(seen.ends, sketcher.slabs)
        self._sample.fold(flat, sketcher.slabs)

    def _widen(self, found: Tensor, slabs: Slabs) -> None:
        """Keeps the largest and smallest of each channel."""
        if self._ends is None:
            self._ends = slabs.keep(found)
            return
        known, width = self._ends.shape[1], found.shape[1]
        if width > known:
            self._ends = slabs.keep(torch.cat([self._ends, found[:, known:]], dim=1))
        high, low = self._ends[:, :width]
        torch.maximum(high, found[0], out=high)
        torch.minimum(low, found[1], out=low)

    def sketch(self) -> Tensor:
        """As it is now, float64 on the CPU."""
        return torch.zeros(BUCKETS, dtype=torch.float64) if self._sketch is None else self._sketch.cpu().clone()

    @property
    def norm(self) -> float:
        """Root of the sum of squares so far."""
        return self._moments.norm

    @property
    def bits(self) -> str:
        """The digest so far."""
        return self._bits.written

    def read(self) -> SiteRecord:
        """Everything known so far."""
        count = sum(self._sample.sizes)
        moments = self._moments.without_zeros(self._non_finite)
        high, low = torch.zeros(2, 0) if self._ends is None else self._ends.double().cpu()
        peaks = torch.maximum(high, -low)
        order = peaks.argsort(descending=True, stable=True)[:TOP].tolist()
        values = self._sample.values.cpu() if self._sample.values is not None else None
        wide = torch.float64 if self._dtype == torch.float64 else torch.float32
        return SiteRecord(
            count=count,
            non_finite=self._non_finite,
            mean=moments.mean,
            std=moments.std,
            min=float(low.min()) if len(low) else 0.0,
            max=float(high.max()) if len(high) else 0.0,
            norm=self.norm,
            bits=self.bits,
            sizes=self._sample.sizes,
            width=len(peaks),
            top_channels=tuple((channel, float(peaks[channel])) for channel in order),
            sketch=self.sketch().float(),
            sample=(torch.zeros(SLOTS) if values is None else values).to(wide),
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """One call."""

    moments: Moments
    sketch: Tensor
    ends: Tensor


def _look(flat: Tensor, width: int, call: int, sketcher: Sketcher, bits: Bits | None = None) -> _Seen:
    """Everything about a call that all its elements are needed for, from chunks that stay in a cache meanwhile."""
    moments, sketches, ends = Moments(), [], []
    rows, done = flat.view(-1, width), 0
    for number, chunk in enumerate(flat.split(CHUNK)):
        if bits is not None:
            bits.add(chunk)
        wide = sketcher.widened(chunk)
        moments = moments.joined(moments_of(chunk, wide))
        sketches.append(sketcher.sketch(wide, call, number))
        if (whole := min((number + 1) * CHUNK, flat.numel()) // width) > done:
            ends.append(_range(rows[done:whole]))
            done = whole
    if len(sketches) == 1:
        return _Seen(moments, sketches[0], ends[0])
    return _Seen(moments, torch.stack(sketches).sum(0, dtype=torch.float64), _joined(ends))


def _range(rows: Tensor) -> Tensor:
    """The largest and the smallest of each channel."""
    return torch.stack([rows.amax(0), rows.amin(0)])


def _joined(ends: list[Tensor]) -> Tensor:
    found = torch.stack(ends)
    return torch.stack([found[:, 0].amax(0), found[:, 1].amin(0)])
