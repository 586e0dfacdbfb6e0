"""The noise floor: how far a healthy device may be off, measured by noise of one unit in the last place everywhere.

The reference runs again with every operator's value changed by

    eps |x| u                             u even in [-1, 1], eps the unit of a dtype
    + (eps + 2^-23 sqrt(K) / 8) r v       for products and embeddings, r the root mean square of the value's row

The first is what two roundings may differ by; the second what weights cast from a wider dtype, or another order in
which K terms are summed in float32, may do to a sum: one term after the other, the error is about .35 sqrt(K) units of
such noise, and four times an eighth leaves room for it. Attention runs in steps, so that scores and probabilities are
rounded too, as they are on a device without the fused kernel.

A site's floor is the largest |run - reference| / |reference| of several draws of that noise, and half a unit at least;
its tolerance is four times that. Draws agree unless a decision falls otherwise: a token goes to another expert, or
becomes one that all others attend to. Then errors are as large as values, and no draw tells how many decisions will. In
half precision that is not rare; the noise is several times what a device's own rounding does, so that draws show it
before devices do.

Floors are the reference's affair: of its own dtype, and of bfloat16 for a suspect that computes in less. Nothing that a
suspect says of itself can excuse it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..capturing.sequences import grouped_modules
from ..injection import Watch
from ..operators import OPERATORS
from ..sites import Layout, Site
from ..specs import Layer, Phase
from .sketch import keyed
from .tally import SiteTally

__all__ = ["FACTOR", "Floors", "Sketches", "measure_floors", "units_of"]

FACTOR = 4.0
"""how many times the floor is tolerated"""
DRAWS, HALF_DRAWS, EXPERTS_DRAWS = 2, 4, 8
"""of the noise: in wide dtypes, in half precision, and in that where every token is routed to some expert"""
HALF = 2.0**-12
"""units from which on decisions fall otherwise now and then"""
_FLOAT32 = 2.0**-23
_TABLE = 1 << 20
_ROTARY = ("matmul", "bmm")

Key = tuple[str, str]
"""stage and name of a site"""
Sketches = Mapping[Key, SiteTally]
Floors = dict[Key, tuple[tuple[float, ...], tuple[float, ...]]]
"""floors and tolerances, for each unit"""


def units_of(dtype: torch.dtype) -> tuple[float, ...]:
    """Of the dtype itself, and of the coarsest that a model is moved to."""
    return tuple(sorted({torch.finfo(dtype).eps, torch.finfo(torch.bfloat16).eps}))


def measure_floors(
    run: Callable[[AbstractContextManager[object]], Sketches],
    clean: Sketches,
    layout: Layout,
    units: tuple[float, ...],
    *,
    seed: int,
    on_run: Callable[[], None],
) -> Floors:
    """Runs with noise, for each unit; `run` records what is computed inside a context."""
    found: dict[Key, list[float]] = {key: [] for key in clean}
    several = EXPERTS_DRAWS if grouped_modules(layout) else HALF_DRAWS
    for unit in units:
        draws = range(several if unit > HALF else DRAWS)
        noisy = [run(OneUlp(layout, unit, seed=seed + draw)) for draw in draws]
        on_run()
        for key, floors in found.items():
            floors.append(max(unit / 2, *(relative_error(clean[key], other.get(key)) for other in noisy)))
    return {key: (tuple(floors), tuple(FACTOR * floor for floor in floors)) for key, floors in found.items()}


def relative_error(clean: SiteTally, other: SiteTally | None) -> float:
    """|other - clean| / |clean|, from their sketches; 0 for a site that did not run again."""
    if other is None or not clean.norm:
        return 0.0
    return float((other.sketch() - clean.sketch()).norm()) / clean.norm


class OneUlp:
    """Puts noise of one unit in the last place on everything that is computed in its `with` block."""

    def __init__(self, layout: Layout, unit: float, *, seed: int) -> None:
        self._random = keyed(seed, "one ulp", unit)
        self._table = torch.from_numpy(self._random.uniform(-1, 1, 2 * _TABLE).astype(np.float32))
        self._unit, self._blocks = unit, bool(layout.blocks)
        self._terms = 1
        """of the sum that is computed now"""
        self._watch = Watch(self, layout=layout, in_steps=True)

    def __enter__(self) -> "OneUlp":
        self._watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """Everything but products that prepare positions outside the blocks: they are in float32 everywhere."""
        return isinstance(layer, int) or not self._blocks or operator not in _ROTARY

    def before(self, sites: tuple[Site, ...], operands: tuple[Tensor, ...], *, step: int) -> None:
        """Notes how many terms a product will sum."""
        self._terms = operands[0].shape[-1] if operands and operands[0].ndim else 1

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value with noise on it; its gradient is that of the value."""
        return self._noisy(value, summed=any(_is_summed(site.operator) for site in sites))

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The gradient with noise on it."""
        self._terms = grad.shape[-1] if grad.ndim else 1
        return self._noisy(grad, summed=_is_summed(site.operator))

    def _noisy(self, value: Tensor, *, summed: bool) -> Tensor:
        if not value.is_floating_point() or not value.numel():
            return value
        with torch._C.DisableTorchFunction(), torch.no_grad():
            wide = value.detach().to(torch.promote_types(value.dtype, torch.float32))
            noise = wide * self._draw(value)
            if summed:
                size = wide.square().mean(-1, keepdim=True).sqrt() if value.ndim else wide.abs()
                noise += size * self._draw(value) * (1 + _FLOAT32 / self._unit * self._terms**0.5 / 8)
            noise = (noise * self._unit).nan_to_num_(0.0, 0.0, 0.0).to(value.dtype)
        with torch._C.DisableTorchFunction():
            return value + noise

    def _draw(self, value: Tensor) -> Tensor:
        """Even numbers, read from a table at random places."""
        table, count = self._table.to(value.device), value.numel()
        starts = self._random.integers(_TABLE, size=-(-count // _TABLE)).tolist()
        pieces = [table[start : start + min(_TABLE, count - number * _TABLE)] for number, start in enumerate(starts)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(value.shape)


def _is_summed(operator: str) -> bool:
    return operator in ("linear", "attention", "embedding") or (operator in OPERATORS and OPERATORS[operator].product)
