"""What is known of formats at weights: one number a sample, from which any choice of formats is foretold."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, unknown_name
from ..measure.intervals import Estimate, ratio
from ..specs import Layer

__all__ = ["FormatMap", "Place"]


@dataclass(frozen=True)
class Place:
    """A weight, as far as a plan has to know it."""

    path: str
    layer: Layer
    group: str
    """the first of the weights that are stored, and so rounded, alike"""
    size: int
    axis: int
    """that its product sums over; 0 for a Conv1D"""
    bits: Mapping[str, float] = field(repr=False)
    """format -> bits of an element, scales counted"""


@dataclass(frozen=True, eq=False)
class FormatMap:
    """How far each format at each weight moves the log-likelihood of sampled labels, sequence by sequence."""

    places: tuple[Place, ...]
    formats: tuple[str, ...]
    """of weights, then of activations as `none/int8`"""
    projections: NDArray[np.float64]
    """places x samples x formats; a sample is one draw of labels for one sequence; not finite where one overflows"""
    sequences: NDArray[np.int64]
    """which sequence each sample is of"""
    tokens: NDArray[np.float64]
    """predicted tokens of each sample"""
    diagonal: NDArray[np.float64] | None = None
    """the same shape: sums of squares, of the estimate without cross terms"""
    cost: float = 0.0
    """forward-pass equivalents"""
    left_out: tuple[str, ...] = ()
    """weights of the blocks whose module was never called: they have no place, and stay as they are"""

    @cached_property
    def _place(self) -> dict[str, int]:
        return {place.path: number for number, place in enumerate(self.places)}

    @cached_property
    def layers(self) -> dict[Layer, tuple[str, ...]]:
        """Layer -> its weights."""
        return _gathered((place.layer, place.path) for place in self.places)

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Group -> its weights."""
        return _gathered((place.group, place.path) for place in self.places)

    def of(self, choice: Mapping[str, str]) -> NDArray[np.float64]:
        """<G, e> of each sample where these weights are in these formats; `int8/int8` is both at once."""
        found = np.zeros(len(self.tokens))
        for path, scheme in choice.items():
            if path not in self._place:
                raise unknown_name("weight", path, self._place)
            for name in _parts(scheme):
                with np.errstate(invalid="ignore"):  # infinities that meet are not finite either
                    found += self.projections[self._place[path], :, self._format(name)]
        return found

    def together(self, choice: Mapping[str, str]) -> Estimate:
        """The KL, in nats per predicted token, of weights that move together: added up, then squared."""
        return self._kl(np.square(self.of(choice)))

    def kl(self, choice: Mapping[str, str]) -> Estimate:
        """The KL of formats over many layers: within a layer together, from layer to layer added up."""
        parts = _gathered((self.places[self._place[path]].layer, path) for path in choice)
        squares = np.zeros(len(self.tokens))
        for paths in parts.values():
            squares += np.square(self.of({path: choice[path] for path in paths}))
        return self._kl(squares)

    def apart(self, paths: Collection[str], one: str, other: str) -> float:
        """The KL of weights that are off by the difference of two formats."""
        return self._kl(np.square(self.of(self.uniform(one, paths)) - self.of(self.uniform(other, paths)))).value

    def without_cross_terms(self, choice: Mapping[str, str]) -> Estimate:
        """The diagonal estimate, which other tools use."""
        if self.diagonal is None:
            raise InputError("the map was made without the diagonal estimate; ask for it with diagonal=True")
        squares = np.zeros(len(self.tokens))
        for path, scheme in choice.items():
            for name in _parts(scheme):
                squares += self.diagonal[self._place[path], :, self._format(name)]
        return self._kl(squares)

    def uniform(self, scheme: str, paths: Collection[str] | None = None) -> dict[str, str]:
        """The choice of one format for all weights, or for these."""
        return dict.fromkeys(self._place if paths is None else paths, scheme)

    def average_bits(self, choice: Mapping[str, str], *, otherwise: float = 16.0) -> float:
        """Bits per weight, scales counted; weights without a format have so many."""
        total = sum(place.size for place in self.places)
        return (
            sum(
                place.size * (place.bits[choice[place.path]] if place.path in choice else otherwise)
                for place in self.places
            )
            / total
        )

    def _format(self, name: str) -> int:
        if name not in self.formats:
            raise unknown_name("format of this map", name, self.formats)
        return self.formats.index(name)

    def _kl(self, squares: NDArray[np.float64]) -> Estimate:
        """Over sequences, which are independent; draws for one of them are not. Infinite where a format overflows."""
        if not np.isfinite(squares).all():
            return Estimate(inf, inf, inf, inf, len(np.unique(self.sequences)))
        return ratio(
            np.bincount(self.sequences, 0.5 * squares), np.bincount(self.sequences, self.tokens), positive=True
        )


def _parts(scheme: str) -> Iterable[str]:
    weights, slash, activations = scheme.partition("/")
    if weights != "none":
        yield weights
    if slash:
        yield f"none/{activations}"


_K = TypeVar("_K", bound=Hashable)


def _gathered(pairs: Iterable[tuple[_K, str]]) -> dict[_K, tuple[str, ...]]:
    found: dict[_K, tuple[str, ...]] = {}
    for key, value in pairs:
        found[key] = (*found.get(key, ()), value)
    return found
