"""What is recorded of one site: exact statistics, the sketch and the sample, folded call by call.

Sums are taken in float32 over 4096 elements and in float64 over those sums; where a variance would drown in its mean,
or squares leave the range, everything in float64. Elements that are not finite are counted and stand as 0 elsewhere.
"""

from dataclasses import dataclass
from math import isfinite

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
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._non_finite = 0
        self._low, self._high = torch.inf, -torch.inf
        self._peaks = torch.zeros(0, dtype=torch.float64)
        self._bits = 0
        self._dtype: torch.dtype | None = None

    def fold(self, value: Tensor, sketcher: Sketcher) -> None:
        """Adds one call's value."""
        call = len(self._sample.sizes)
        self._dtype = value.dtype
        rows = value.reshape(-1, value.shape[-1] if value.ndim else 1)
        flat = rows.reshape(-1)
        if flat.numel():
            flat = self._look(rows, flat)
            if self._sketch is None:
                self._sketch = torch.zeros(BUCKETS, dtype=torch.float64, device=value.device)
            for number, chunk in enumerate(flat.split(CHUNK)):
                wide = chunk if chunk.dtype == torch.float32 else chunk.float()
                sketcher.add(self._sketch, wide, call, number)
                self._sums += _sums(chunk)
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
        return float(self._sums[1].sqrt())

    def read(self) -> SiteRecord:
        """Everything known so far."""
        count = sum(self._sample.sizes)
        finite = max(count - self._non_finite, 1)
        total, squares = self._sums.tolist()
        mean = total / finite
        order = self._peaks.argsort(descending=True, stable=True)[:TOP].tolist()
        values = self._sample.values
        wide = torch.float64 if self._dtype == torch.float64 else torch.float32
        return SiteRecord(
            count=count,
            non_finite=self._non_finite,
            mean=mean,
            std=max(squares / finite - mean * mean, 0.0) ** 0.5,
            min=self._low if count else 0.0,
            max=self._high if count else 0.0,
            norm=squares**0.5,
            bits=f"{self._bits:016x}",
            sizes=self._sample.sizes,
            width=len(self._peaks),
            top_channels=tuple((channel, float(self._peaks[channel])) for channel in order),
            sketch=self.sketch().float(),
            sample=(torch.zeros(SLOTS) if values is None else values).to(wide),
        )


def _sums(chunk: Tensor) -> Tensor:
    """Sum and sum of squares, float64 on the CPU."""
    if chunk.dtype == torch.float64:
        return torch.stack([chunk.sum(), chunk.square().sum()]).cpu()
    wide = chunk if chunk.dtype == torch.float32 else chunk.float()
    found = torch.stack([_sum(wide), _sum(wide * wide)]).cpu()
    total, squares = found.tolist()
    if not isfinite(squares) or total * total > 100 * squares * chunk.numel() / 101 or 0 < squares < 1e-30:
        double = chunk.double()
        return torch.stack([double.sum(), double.square().sum()]).cpu()
    return found


def _sum(chunk: Tensor) -> Tensor:
    whole = chunk.numel() - chunk.numel() % _PIECE
    pieces = chunk[:whole].view(-1, _PIECE).sum(1).double().sum()
    return pieces + chunk[whole:].sum().double()


def _bits(flat: Tensor) -> int:
    """Changes with any bit; equal bits give the same number on every machine."""
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = flat.view(views[flat.element_size()])
    return int(whole.sum(dtype=torch.int32 if flat.element_size() == 4 else torch.int64)) % 2**63
