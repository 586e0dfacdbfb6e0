"""What is beyond the noise floor, and where it began.

A site is beyond if even the low end of its error is above the reference's tolerance, or if one side alone has values
that are not finite. A difference in bits below that is what healthy devices show.

The first site beyond is not always where it began: a small error may grow on its way. But where the devices give the
same bits for every operator before some site, and compute with the same arithmetic, that site is it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, inf, log

import torch

from ..traces import SiteHead, Trace
from .estimating import EQUAL, Metrics, Side, estimate, exact
from .pairing import Pair

__all__ = ["Judged", "Yardstick", "find_first", "judge"]

_SAME_KERNELS = ("device", "dtype", "attention", "threads", "machine", "torch")
"""fields of the environment that decide which bits a healthy device gives"""


@dataclass(frozen=True)
class Yardstick:
    """The floors of one trace, for the coarser dtype of the two."""

    units: tuple[float, ...]
    unit: float

    @classmethod
    def of(cls, reference: Trace, a: Trace, b: Trace) -> "Yardstick | None":
        """None if that trace has no floor."""
        if reference.head.floor is None or not reference.head.floor.units:
            return None
        return cls(reference.head.floor.units, max(_unit(a), _unit(b)))

    def read(self, bounds: Sequence[float]) -> float | None:
        """A floor or tolerance at this unit; between two that were measured, in proportion of their logarithms."""
        if not bounds or len(bounds) != len(self.units):
            return None
        if self.unit in self.units:
            return bounds[self.units.index(self.unit)]
        at = min(range(len(self.units)), key=lambda i: abs(log(self.units[i] / self.unit)))
        if len(self.units) < 2 or min(bounds) <= 0 or not self.units[0] < self.unit < self.units[-1]:
            return bounds[at] * self.unit / self.units[at]
        low, high = at - (self.units[at] > self.unit), at + (self.units[at] < self.unit)
        share = log(self.unit / self.units[low]) / log(self.units[high] / self.units[low])
        return exp((1 - share) * log(bounds[low]) + share * log(bounds[high]))


def _unit(trace: Trace) -> float:
    dtype = getattr(torch, trace.head.environment.dtype, torch.float32)
    return float(torch.finfo(dtype).eps) if isinstance(dtype, torch.dtype) and dtype.is_floating_point else 2.0**-23


@dataclass(frozen=True)
class Judged:
    """One site, compared and judged."""

    site: SiteHead
    non_finite: tuple[int, int]
    same_bits: bool
    exact: bool
    """whether whole values were compared"""
    metrics: Metrics
    floor: float | None
    tolerance: float | None

    @property
    def excess(self) -> float:
        """Error in units of what is tolerated; 0 where nothing is known."""
        if self.non_finite[0] != self.non_finite[1]:
            return inf
        if self.same_bits or self.tolerance is None:
            return 0.0
        error = self.metrics.relative_error.value
        return error / self.tolerance if self.tolerance else (inf if error else 0.0)

    @property
    def beyond(self) -> bool:
        """True if no healthy device would give this."""
        if self.non_finite[0] != self.non_finite[1]:
            return True
        if self.same_bits or self.tolerance is None:
            return False
        return self.metrics.relative_error.low > self.tolerance


def judge(pair: Pair, a: Trace, b: Trace, yardstick: Yardstick | None, *, fed: bool = False) -> Judged:
    """Compares one site of two traces."""
    mine = Side(pair.site, a.sketch[pair.first], a.sample[pair.first])
    other = Side(pair.other, b.sketch[pair.second], b.sample[pair.second])
    whole = pair.first in a.full and pair.second in b.full
    metrics = exact(mine, other, a.full[pair.first](), b.full[pair.second]()) if whole else estimate(mine, other)
    bounds = pair.site.own_tolerances if fed else pair.site.tolerances
    return Judged(
        site=pair.site,
        non_finite=(pair.site.non_finite, pair.other.non_finite),
        same_bits=metrics is EQUAL,
        exact=whole,
        metrics=metrics,
        floor=yardstick.read(pair.site.floors) if yardstick is not None else None,
        tolerance=yardstick.read(bounds) if yardstick is not None else None,
    )


def find_first(sites: Sequence[Judged], a: Trace, b: Trace) -> Judged | None:
    """Where it began, of sites in the order of their calls; None if nothing is beyond the floor."""
    beyond = next((site for site in sites if site.beyond), None)
    differing = next((site for site in sites if not site.same_bits), None)
    if beyond is None or differing is None or differing is beyond:
        return beyond
    return differing if _same_arithmetic(differing, sites, a, b) else beyond


def _same_arithmetic(found: Judged, sites: Sequence[Judged], a: Trace, b: Trace) -> bool:
    """Whether the two devices would give the same bits here if both were healthy.

    They do if they are of the same make and run the same kernels, or if they have given the same bits where another
    module computes the same.
    """
    if same_kernels(a, b):
        return True
    role = _role(found.site)
    return any(site.same_bits and _role(site.site) == role and site.site.norm for site in sites)


def same_kernels(a: Trace, b: Trace) -> bool:
    """True for the same hardware and software, whatever is wrong with one of them at some place."""
    mine, other = (asdict(trace.head.environment) for trace in (a, b))
    everywhere = [[name for name in env["emulated"] if "@" not in name] for env in (mine, other)]
    return everywhere[0] == everywhere[1] and all(mine[field] == other[field] for field in _SAME_KERNELS)


def _role(site: SiteHead) -> tuple[str, str]:
    """The operator, and the module's path with the layer's number left out."""
    parts = (part for part in site.module.split(".") if part != str(site.layer))
    return site.operator, ".".join(parts)
