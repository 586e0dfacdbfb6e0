"""What is beyond the noise floor, and where it began.

A site is beyond if even the low end of its error is above the reference's tolerance, or if one side alone has values
that are not finite. A difference in bits below that is what healthy devices show.

The first site beyond is not always where it began: a small error may grow on its way. But where the devices give the
same bits for every operator before some site, and compute with the same arithmetic, that site is it. Whether they do is
seen in the run that was fed, where most layers then agree in all bits; without one, in another layer that computes the
same, or taken from what the traces say of their devices.

A site is judged by the floor of the coarsest dtype that either side has computed in up to there.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, inf, log

import torch

from ..traces import SiteHead, Trace
from .estimating import EQUAL, Metrics, Side, estimate, exact
from .pairing import Pair

__all__ = ["Judged", "Yardstick", "devices_alike", "find_first", "judge_all"]

_SAME_KERNELS = (
    "device",
    "accelerator",
    "dtype",
    "attention",
    "threads",
    "machine",
    "torch",
    "matmul_precision",
    "deterministic",
    "flushes_denormals",
)
"""fields of the environment that decide which bits a healthy device gives"""


@dataclass(frozen=True)
class Yardstick:
    """The floors of one trace, for the coarser dtype of the two."""

    units: tuple[float, ...]
    unit: float

    @classmethod
    def of(cls, a: Trace, b: Trace) -> "Yardstick | None":
        """By the dtypes of both models' weights; None if the first trace has no floor."""
        if a.head.floor is None or not a.head.floor.units:
            return None
        return cls(a.head.floor.units, max(_eps(trace.head.environment.dtype) for trace in (a, b)))

    def at(self, pair: Pair) -> "Yardstick":
        """For values of these dtypes, and all that come after them."""
        return replace(self, unit=max(self.unit, _eps(pair.site.dtype), _eps(pair.other.dtype)))

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


def _eps(dtype: str) -> float:
    found = getattr(torch, dtype, torch.float32)
    return float(torch.finfo(found).eps) if isinstance(found, torch.dtype) and found.is_floating_point else 2.0**-23


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


def judge_all(
    pairs: Sequence[Pair], a: Trace, b: Trace, yardstick: Yardstick | None, *, fed: bool = False
) -> tuple[Judged, ...]:
    """Compares the sites of two traces, in the order of their calls."""
    found = []
    for pair in pairs:
        yardstick = yardstick.at(pair) if yardstick is not None else None
        found.append(_judge(pair, a, b, yardstick, fed=fed))
    return tuple(found)


def _judge(pair: Pair, a: Trace, b: Trace, yardstick: Yardstick | None, *, fed: bool) -> Judged:
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


def find_first(sites: Sequence[Judged], *, alike: bool | None) -> Judged | None:
    """Where it began, of sites in the order of their calls; None if nothing is beyond the floor.

    `alike` says whether both devices give the same bits when they are healthy; None if that is not known.
    """
    beyond = next((site for site in sites if site.beyond), None)
    differing = next((site for site in sites if not site.same_bits), None)
    if beyond is None or differing is None or differing is beyond:
        return beyond
    if alike is None:
        role = _role(differing.site)
        alike = any(site.same_bits and _role(site.site) == role and site.site.norm for site in sites)
    return differing if alike else beyond


def devices_alike(fed: Sequence[Judged], a: Trace, b: Trace) -> bool | None:
    """Whether any difference in bits is an error.

    It is if at least half of all layers agree in all bits when they are given the same; a table of embeddings does
    everywhere. Without such a run it is for the same hardware and software, else nobody knows.
    """
    layers: dict[object, bool] = {}
    for site in fed:
        if site.site.layer not in (None, "embed"):
            layers[site.site.layer] = layers.get(site.site.layer, True) and site.same_bits
    if layers:
        return 2 * sum(layers.values()) >= len(layers)
    mine, other = (asdict(trace.head.environment) for trace in (a, b))
    everywhere = [[name for name in env["emulated"] if "@" not in name] for env in (mine, other)]
    same = everywhere[0] == everywhere[1] and all(mine[field] == other[field] for field in _SAME_KERNELS)
    return True if same else None


def _role(site: SiteHead) -> tuple[str, str]:
    """The operator, and the module's path with the layer's number left out."""
    parts = (part for part in site.module.split(".") if part != str(site.layer))
    return site.operator, ".".join(parts)
