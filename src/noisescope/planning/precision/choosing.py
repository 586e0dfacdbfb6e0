"""From what is known of formats to a choice: the best there is, the best single format, the whole trade-off.

Groups that are stored together (q, k and v; gate and up) get one format. What is kept has 16 bits, and counts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import InputError
from ...noise.formats import parse_format
from ...quantising.checking import CheckedFormats
from ...quantising.weights import Weight, matching
from .programme import GAP, Near, Option, Solution, solve

__all__ = ["KEPT_BITS", "Candidates", "Chosen", "Point", "require_bits"]

KEPT_BITS = 16.0
POINTS = 24
"""of the trade-off curve"""


@dataclass(frozen=True)
class Chosen:
    """A format for each weight that gets one."""

    formats: Mapping[str, str]
    """path -> format"""
    bits: float
    """on average, scales and kept weights counted"""
    kl: float
    """predicted, in nats per token"""
    gap: float = 0.0
    """share by which a better choice may be better"""


@dataclass(frozen=True)
class Point:
    """A point of the trade-off."""

    bits: float
    kl: float


def require_bits(
    avg_bits: float, weights: Mapping[str, Weight], formats: Sequence[str], *, keep: Collection[str] = ()
) -> None:
    """Raises for an average that no choice of these formats has: before anything is run."""
    kept = matching(keep, weights, what="keep")
    if kept.issuperset(weights):
        raise InputError("keep: all weights are kept; there is nothing to plan")
    forms = [parse_format(name) for name in formats]
    least = {
        path: KEPT_BITS if path in kept else min(form.bits(weight.shape, axis=weight.axis) for form in forms)
        for path, weight in weights.items()
    }
    sizes = {path: weight.size for path, weight in weights.items()}
    fewest = sum(sizes[path] * bits for path, bits in least.items()) / sum(sizes.values())
    if avg_bits < fewest * (1 - 1e-12):
        among = f", {len(kept)} kept weights at {KEPT_BITS:g} among them" if kept else ""
        raise InputError(
            f"avg_bits: got {avg_bits:g}, but the fewest with these formats is {fewest:.4g}{among}; allow more bits "
            "or a smaller format"
        )


class Candidates:
    """All choices that are asked about: these formats, and these weights kept as they are."""

    def __init__(self, known: CheckedFormats, formats: Sequence[str], *, keep: Sequence[str] = ()) -> None:
        self.known, self.formats = known, tuple(formats)
        self.kept = matching(keep, [place.path for place in known.map.places], what="keep")
        self._places = {place.path: place for place in known.map.places}
        self.groups = {
            group: tuple(path for path in paths if path not in self.kept)
            for group, paths in known.map.groups.items()
            if not self.kept.issuperset(paths)
        }
        self._weights = sum(place.size for place in known.map.places)

    @cached_property
    def options(self) -> dict[str, list[Option]]:
        """Group -> what it can be."""
        return {
            group: [Option(name, self._bits(paths, name), self._cost(paths, name)) for name in self.formats]
            for group, paths in self.groups.items()
        }

    def best(self, avg_bits: float) -> Chosen:
        """The least predicted KL within so many bits."""
        return self.solved(self.options, avg_bits)

    def solved(self, options: Mapping[str, Sequence[Option]], avg_bits: float, *, near: Near | None = None) -> Chosen:
        """What costs least within so many bits, if groups cost what these options say."""
        return self._chosen(solve(options, most_bits=avg_bits * self._weights - self._kept_bits, near=near))

    def uniform(self, name: str) -> Chosen:
        """One format for all that is not kept."""
        options = [next(o for o in given if o.format == name) for given in self.options.values()]
        choice = dict.fromkeys(self.options, name)
        return self._chosen(Solution(choice, sum(o.cost for o in options), sum(o.bits for o in options), 0.0))

    def given(self, formats: Mapping[str, str]) -> Chosen:
        """A choice that somebody else made, by weight."""
        bits = sum(
            place.size * (place.bits[formats[path]] if path in formats else KEPT_BITS)
            for path, place in self._places.items()
        )
        kl = sum(
            self._cost(tuple(path for path in paths if formats.get(path) == name), name)
            for paths in self.groups.values()
            for name in dict.fromkeys(formats[path] for path in paths if path in formats)
        )
        return Chosen(dict(formats), bits / self._weights, kl)

    def curve(self) -> list[Point]:
        """The trade-off: the least predicted KL at every average of bits."""
        fewest = sum(min(option.bits for option in given) for given in self.options.values())
        most = sum(min(given, key=lambda o: (o.cost, o.bits)).bits for given in self.options.values())
        found = [solve(self.options, most_bits=float(bits)) for bits in np.geomspace(fewest, most, POINTS)]
        points = [Point((self._kept_bits + one.bits) / self._weights, one.cost) for one in found]
        return list(dict.fromkeys(points))

    def _chosen(self, solution: Solution) -> Chosen:
        formats = {path: name for group, name in solution.choice.items() for path in self.groups[group]}
        ordered = {path: formats[path] for path in self._places if path in formats}
        bits = (solution.bits + self._kept_bits) / self._weights
        return Chosen(ordered, bits, solution.cost, solution.gap if solution.gap > GAP else 0.0)

    @property
    def _kept_bits(self) -> float:
        return KEPT_BITS * sum(self._places[path].size for path in self.kept)

    def _bits(self, paths: Sequence[str], name: str) -> float:
        return sum(self._places[path].size * self._places[path].bits[name] for path in paths)

    def _cost(self, paths: Sequence[str], name: str) -> float:
        return self.known.cost(paths, self._places[paths[0]].layer, name) if paths else 0.0
