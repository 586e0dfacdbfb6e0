"""How far two values are apart: exactly where both were kept whole, else estimated with an interval of 95%.

    relative error, SQNR, cosine, Pearson     from sketches and norms: the error's square has a standard error of 3.1%
    MAE, MAPE, shares within 0.1% and 0.5%    from 1024 sampled elements
    largest error                             at least what was seen, at most the error's norm

MAPE is the mean of |b - a| / |a| over elements of at least a tenth of the median abs of the reference's sample: below
that a percentage says little, and the mean over all elements is that of the few nearest to zero.

Errors of a few elements may not be in the sample at all. The sketch sees them: where the sample holds less than half of
the error's energy, or few elements make up its mean, the upper end is what the error's norm allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log10, sqrt

import torch
from torch import Tensor

from ..traces import SiteHead
from ..traces.sketch import STANDARD_ERROR

__all__ = ["METRICS", "Figure", "Metrics", "estimate", "exact"]

_Z = 1.96
ROUNDING = 2e-7
"""of a sketch, relative to the norm of its value: sums are taken in float32"""
SMALL = 0.1
"""of the median abs, below which an element has no percentage error"""
FEW = 30
"""elements that must make up a sampled mean for its interval to be believed"""
_Z_OF_MEANS = 2.24
"""errors have long tails: with 1.96 the interval of a mean of 1024 of them covers it in 91 to 94% of cases"""


@dataclass(frozen=True)
class Figure:
    """A number with its interval; exact ones have none."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> "Figure":
        """Without an interval."""
        return cls(value, value, value)

    def mapped(self, function: Callable[[float], float]) -> "Figure":
        """Through a monotonous function."""
        ends = sorted((function(self.low), function(self.high)))
        return Figure(function(self.value), ends[0], ends[1])


@dataclass(frozen=True)
class Metrics:
    """What two devices differ by at one site."""

    relative_error: Figure
    """|b - a| / |a|"""
    sqnr_db: Figure
    cosine: Figure
    pearson: Figure
    mae: Figure
    mape: Figure
    max_error: Figure
    within_01: Figure
    """share of elements within 0.1%"""
    within_05: Figure
    """share of elements within 0.5%"""


METRICS = tuple(Metrics.__dataclass_fields__)
_ZERO, _ONE = Figure.exactly(0.0), Figure.exactly(1.0)
EQUAL = Metrics(_ZERO, Figure.exactly(inf), _ONE, _ONE, _ZERO, _ZERO, _ZERO, _ONE, _ONE)
"""of equal bits"""


@dataclass(frozen=True, eq=False)
class Side:
    """A site as one trace has it."""

    head: SiteHead
    sketch: Tensor
    sample: Tensor


def estimate(a: Side, b: Side) -> Metrics:
    """From sketches and samples."""
    if _is_same(a, b):
        return EQUAL
    return _metrics(a.head, b.head, _error_norm(a, b), *_sampled(a, b), _largest(a, b))


def exact(a: Side, b: Side, ours: list[Tensor], theirs: list[Tensor]) -> Metrics:
    """From whole values."""
    if _is_same(a, b):
        return EQUAL
    x, y = (torch.cat([part.reshape(-1).double() for part in side]) for side in (ours, theirs))
    finite = x.isfinite() & y.isfinite()
    x, y = x[finite], y[finite]
    size = (y - x).abs()
    norm = float(size.square().sum().sqrt())
    within_01, within_05 = (Figure.exactly(_mean((size <= share * x.abs()).double())) for share in (0.001, 0.005))
    large = _is_large(x, a)
    mape = Figure.exactly(_mean(size[large] / x.abs()[large]))
    largest = Figure.exactly(float(size.max()) if len(size) else 0.0)
    return _metrics(
        a.head, b.head, Figure.exactly(norm), Figure.exactly(_mean(size)), mape, within_01, within_05, largest
    )


def _metrics(
    a: SiteHead,
    b: SiteHead,
    error: Figure,
    mae: Figure,
    mape: Figure,
    within_01: Figure,
    within_05: Figure,
    largest: Figure,
) -> Metrics:
    relative = error.mapped(lambda e: e / a.norm if a.norm else (inf if e else 0.0))
    return Metrics(
        relative_error=relative,
        sqnr_db=relative.mapped(lambda r: -20 * log10(r) if 0 < r < inf else (inf if r == 0 else -inf)),
        cosine=error.mapped(lambda e: _cosine(a.norm, b.norm, e)),
        pearson=error.mapped(lambda e: _pearson(a, b, e)),
        mae=mae,
        mape=mape,
        max_error=largest,
        within_01=within_01,
        within_05=within_05,
    )


def _error_norm(a: Side, b: Side) -> Figure:
    """|b - a|; the square's interval, and what the sketches' own rounding may add."""
    found = float((b.sketch.double() - a.sketch.double()).norm())
    spread, slack = _Z * STANDARD_ERROR, ROUNDING * max(a.head.norm, b.head.norm)
    low, high = found * sqrt(1 - spread) - slack, found * sqrt(1 + spread) + slack
    low = max(low, abs(b.head.norm - a.head.norm) - slack, 0.0)  # by the triangle of the two values and the error
    return Figure(max(found, low), low, max(high, low))


def _cosine(mine: float, other: float, error: float) -> float:
    """From the three sides of the triangle."""
    if not mine or not other:
        return 1.0 if mine == other else 0.0
    return max(-1.0, min(1.0, 1 - (error * error - (mine - other) ** 2) / (2 * mine * other)))


def _pearson(a: SiteHead, b: SiteHead, error: float) -> float:
    """The same around the means."""
    n = max(a.count - max(a.non_finite, b.non_finite), 1)
    mine, other = a.std * sqrt(n), b.std * sqrt(n)
    around = error * error - n * (a.mean - b.mean) ** 2
    if not mine or not other:
        return 1.0 if error == 0 else 0.0
    return max(-1.0, min(1.0, 1 - (max(around, 0.0) - (mine - other) ** 2) / (2 * mine * other)))


def _sampled(a: Side, b: Side) -> tuple[Figure, Figure, Figure, Figure]:
    """MAE, MAPE and the two shares."""
    x, y = a.sample.double(), b.sample.double()
    finite = x.isfinite() & y.isfinite()
    x, y = x[finite], y[finite]
    size = (y - x).abs()
    large = _is_large(x, a)
    error, n = _error_norm(a, b), max(a.head.count, 1)
    missed = float(size.square().sum()) * n < 0.5 * error.low**2 * max(len(x), 1)
    most = error.high / sqrt(n)  # by Cauchy and Schwarz
    above = float(x.abs()[large].min()) if bool(large.any()) else 0.0
    share = max(float(large.double().mean()) if len(large) else 0.0, 1 / n)
    mape = _interval(size[large] / x.abs()[large], most / (above * share) if above else inf, missed=missed)
    shares = [_share(int((size <= share * x.abs()).sum()), len(x)) for share in (0.001, 0.005)]
    return _interval(size, most, missed=missed), mape, shares[0], shares[1]


def _is_same(a: Side, b: Side) -> bool:
    """True for equal bits."""
    return a.head.bits == b.head.bits and a.head.dtype == b.head.dtype and torch.equal(a.sketch, b.sketch)


def _is_large(x: Tensor, a: Side) -> Tensor:
    """Where an element has a percentage error."""
    sample = a.sample.double().abs()
    return (x.abs() >= SMALL * sample.nanmedian()) & (x != 0)


def _largest(a: Side, b: Side) -> Figure:
    seen = float((b.sample.double() - a.sample.double()).abs().nan_to_num(0.0).max())
    ends = max(abs(a.head.max - b.head.max), abs(a.head.min - b.head.min))
    error = _error_norm(a, b)
    low = max(seen, ends)
    return Figure(low, low, max(low, error.high))


def _interval(values: Tensor, most: float, *, missed: bool) -> Figure:
    """A mean of positive numbers with its interval, even on a logarithmic scale: the tail is above.

    `most` is what it can be at all; `missed` says that the sample does not hold what makes it up.
    """
    mean = _mean(values)
    if len(values) < 2 or not mean:
        return Figure(mean, 0.0, max(mean, most))
    factor = exp(min(_Z_OF_MEANS * float(values.std()) / sqrt(len(values)) / mean, 100.0))
    total = float(values.sum())
    few = total * total < FEW * float(values.square().sum())
    return Figure(mean, mean / factor, max(mean * factor, most) if missed or few else mean * factor)


def _share(hits: int, of: int) -> Figure:
    """A share with Wilson's interval."""
    if not of:
        return Figure(0.0, 0.0, 1.0)
    share, z = hits / of, _Z
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    reach = z / (1 + z * z / of) * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return Figure(share, max(centre - reach, 0.0), min(centre + reach, 1.0))


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0
