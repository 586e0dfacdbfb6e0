"""How the KL of a choice of formats changes when a weight gets another one: its slope, at that choice.

The map foretells what a format does to the model as it is. Between weights that are rounded already the errors meet
again, add up or cancel, and that the map leaves out. Here the model computes in the formats of a choice, and G is the
gradient, by each weight, of the KL of the clean output from what comes out:

    KL(choice with e in place of a) - KL(choice)  =  <G, e - a> + 1/2 (e - a)' F (e - a)

to second order, of which the last term is one number of the map (`FormatMap.apart`). No labels are drawn, so that a
hundred sequences do. To second order sum <G, a> is twice the KL of the choice: a check that costs nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..measure.scoring import kl_gradient
from ..noise.formats import parse_format
from ..points import Bench
from .emulating import quantised
from .gathering import Asked, Gathering, Gradient
from .weights import find_weights

__all__ = ["Slopes", "slopes_at"]

COST = 4.0
"""forward passes: one in the formats, its backward pass, and the gradients by weights"""


@dataclass(frozen=True, eq=False)
class Slopes:
    """What the error of each format adds to the KL of a choice, to first order."""

    paths: tuple[str, ...]
    formats: tuple[str, ...]
    values: NDArray[np.float64]
    """paths x formats, in nats per token"""
    cost: float = COST
    """forward-pass equivalents"""

    def of(self, paths: Iterable[str], name: str) -> float:
        """Of weights that are in one format."""
        rows = [self.paths.index(path) for path in paths]
        return float(self.values[rows, self.formats.index(name)].sum())


def slopes_at(bench: Bench, formats: Collection[str], choice: Mapping[str, str], *, seed: int = 0) -> Slopes:
    """The slopes of every format at every weight, where the model computes in the formats of `choice`.

    Args:
        bench: a causal language model in 16 or 32 bit, on data. It is left bit-identical.
        formats: of weights, to ask about.
        choice: module path -> format, of weights of the blocks.
        seed: of stochastic rounding.
    """
    weights = find_weights(bench.layout)
    asked = Asked(tuple(map(parse_format, formats)), (), diagonal=False, seed=seed)
    clean = bench.clean_logits  # before anything is rounded
    with quantised(bench.model, choice, layout=bench.layout, seed=seed) as emulation:
        gathering = Gathering(weights, asked, rounded=emulation.rounded)
        for batch, kept in zip(bench.data, clean, strict=True):
            gathering.run(bench.model, batch, [_of_kl(kept.get())], bench.layout)
    total = np.concatenate(gathering.tokens).sum()
    return Slopes(tuple(gathering.called), asked.names, gathering.projections.sum(1) / total)


def _of_kl(clean: Tensor) -> Gradient:
    return lambda logits, batch: kl_gradient(logits, batch, clean)
