"""What is recorded of one site: exact statistics, the sketch and the sample, folded call by call.

Sums are taken in float32 over 4096 elements and in float64 over those sums; where a variance would drown in its mean,
or squares leave the range, everything in float64, around the mean. Elements that are not finite are counted and stand
as 0 elsewhere.
"""

from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import Tensor

from .sampling import SLOTS, Sample
from .sketch import BUCKETS, CHUNK, Sketcher

__all__ = ["TOP", "SiteRecord", "SiteTally"]

TOP = 8
"""channels with the largest abs that are named"""
_PIECE = 4096


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
        self._low, self._high = torch.inf, -torch.inf
        self._peaks = torch.zeros(0, dtype=torch.float64)
        self._bits = 0
        self._dtype: torch.dtype | None = None

    def fold(self, value: Tensor, sketcher: Sketcher) -> None:
        """Adds one call's value."""
        call = len(self._sample.sizes)
        self._dtype = value.dtype
        flat = value.reshape(-1)
        if flat.numel():
            flat = self._look(flat.view(-1, value.shape[-1] if value.ndim else 1), flat)
            if self._sketch is None:
                self._sketch = torch.zeros(BUCKETS, dtype=torch.float64, device=value.device)
            for number, chunk in enumerate(flat.split(CHUNK)):
                wide = chunk if chunk.dtype == torch.float32 else chunk.float()
                sketcher.add(self._sketch, wide, call, number)
                self._moments = self._moments.joined(_moments(chunk))
        self._sample.fold(flat)

    def _look(self, rows: Tensor, flat: Tensor) -> Tensor:
        """Range, channels and bits; the elements with 0 where they are not finite."""
        self._bits = (self._bits * 1000003 + _bits(flat) + 1) % 2**63
        high, low = rows.amax(0), rows.amin(0)
        if not isfinite(float(high.sum()) + float(low.sum())):
            wrong = ~flat.isfinite()
            self._non_finite += int(wrong.sum())
            flat = flat.masked_fill(wrong, 0)
            cleaned = flat.view(rows.shape)
            high, low = cleaned.amax(0), cleaned.amin(0)
        self._low, self._high = min(self._low, float(low.min())), max(self._high, float(high.max()))
        peaks = torch.maximum(high, -low).double().cpu()
        if len(peaks) > len(self._peaks):
            self._peaks = torch.cat([self._peaks, peaks.new_zeros(len(peaks) - len(self._peaks))])
        self._peaks[: len(peaks)] = torch.maximum(self._peaks[: len(peaks)], peaks)
        return flat

    def sketch(self) -> Tensor:
        """As it is now, float64 on the CPU."""
        return torch.zeros(BUCKETS, dtype=torch.float64) if self._sketch is None else self._sketch.cpu().clone()

    @property
    def norm(self) -> float:
        """Root of the sum of squares so far."""
        return self._moments.norm

    def read(self) -> SiteRecord:
        """Everything known so far."""
        count = sum(self._sample.sizes)
        moments = self._moments.without_zeros(self._non_finite)
        order = self._peaks.argsort(descending=True, stable=True)[:TOP].tolist()
        values = self._sample.values
        wide = torch.float64 if self._dtype == torch.float64 else torch.float32
        return SiteRecord(
            count=count,
            non_finite=self._non_finite,
            mean=moments.mean,
            std=moments.std,
            min=self._low if count else 0.0,
            max=self._high if count else 0.0,
            norm=self.norm,
            bits=f"{self._bits:016x}",
            sizes=self._sample.sizes,
            width=len(self._peaks),
            top_channels=tuple((channel, float(self._peaks[channel])) for channel in order),
            sketch=self.sketch().float(),
            sample=(torch.zeros(SLOTS) if values is None else values).to(wide),
        )


@dataclass(frozen=True)
class Moments:
    """Number, mean and sum of squares around the mean, of numbers that may be seen in parts."""

    count: int = 0
    mean: float = 0.0
    around: float = 0.0

    @property
    def std(self) -> float:
        """Of the population."""
        return sqrt(max(self.around, 0.0) / self.count) if self.count else 0.0

    @property
    def norm(self) -> float:
        """Root of the sum of squares around zero."""
        return sqrt(max(self.around + self.count * self.mean * self.mean, 0.0))

    def joined(self, other: "Moments") -> "Moments":
        """Of both parts together."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        return Moments(count, mean, self.around + other.around + apart * apart * self.count * other.count / count)

    def without_zeros(self, zeros: int) -> "Moments":
        """Of the same numbers without so many zeros."""
        if not zeros or zeros >= self.count:
            return self if not zeros else Moments()
        count = self.count - zeros
        mean = self.mean * self.count / count
        return Moments(count, mean, self.around + self.count * self.mean**2 - count * mean**2)


def _moments(chunk: Tensor) -> Moments:
    n = chunk.numel()
    if chunk.dtype != torch.float64:
        wide = chunk if chunk.dtype == torch.float32 else chunk.float()
        total, squares = torch.stack([_sum(wide), _sum(wide * wide)]).tolist()
        around = squares - total * total / n
        if isfinite(squares) and around > 0.01 * squares and squares > 1e-30:
            return Moments(n, total / n, around)
    double = chunk.double()
    mean = float(double.mean())
    return Moments(n, mean, float((double - mean).square().sum()))


def _sum(chunk: Tensor) -> Tensor:
    whole = chunk.numel() - chunk.numel() % _PIECE
    pieces = chunk[:whole].view(-1, _PIECE).sum(1).double().sum()
    return pieces + chunk[whole:].sum().double()


def _bits(flat: Tensor) -> int:
    """Changes with any bit; equal bits give the same number on every machine."""
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = flat.view(views[flat.element_size()])
    return int(whole.sum(dtype=torch.int32 if flat.element_size() == 4 else torch.int64)) % 2**63
