"""The noise floor: how far a healthy device may be off, measured by noise of one unit in the last place everywhere.

The reference runs again with every operator's value changed by

    eps |x| u                             u even in [-1, 1], eps the unit of a dtype
    + (eps + 2^-23 sqrt(K) / 8) r v       for products and embeddings, r the root mean square of the value's row

The first is what two roundings may differ by; the second what weights cast from a wider dtype, or another order in
which K terms are summed in float32, may do to a sum: one term after the other, the error is about .35 sqrt(K) units of
such noise, and four times an eighth leaves room for it. Attention runs in steps, so that scores and probabilities are
rounded too, as they are on a device without the fused kernel.

A site's floor is |run - reference| / |reference|, and half a unit at least. Its tolerance is four times that, or what
noise of four units does where that is more: where a decision may fall otherwise, errors do not grow in proportion. In a
mixture of experts, where a token may go to another expert, that is drawn eight times. An expert's rows then move up or
down, and no draw tells how many of them: where that is seen, the tolerance is 2, and no two values of one size differ
by more.

Floors are the reference's affair: of its own dtype, and of bfloat16 for a suspect that computes in less. Nothing that a
suspect says of itself can excuse it.
"""

from collections import deque
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
"""units of the noise that tolerances are measured with"""
DRAWS = 8
"""of that noise, where tokens may be routed otherwise"""
MOVED, APART = 0.25, 2.0
"""an error of an expert's value that only rows in other places explain, and the most that they can differ by"""
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
    """Runs with noise of one and of four units, for each unit; `run` records what is computed inside a context."""
    found: dict[Key, tuple[list[float], list[float]]] = {key: ([], []) for key in clean}
    grouped = grouped_modules(layout)
    for unit in units:
        once = run(OneUlp(layout, unit, seed=seed))
        draws = range(DRAWS if grouped else 1)
        more = [run(OneUlp(layout, unit, seed=seed + draw, factor=FACTOR)) for draw in draws]
        on_run()
        errors = [{key: relative_error(clean[key], other.get(key)) for key in clean} for other in (once, *more)]
        moved = set().union(*(_moved(each, grouped) for each in errors))
        for key, (floors, tolerances) in found.items():
            floors.append(max(errors[0][key], unit / 2))
            tolerances.append(max(FACTOR * floors[-1], *(each[key] for each in errors), APART * (key in moved)))
    return {key: (tuple(floors), tuple(tolerances)) for key, (floors, tolerances) in found.items()}


def _moved(errors: Mapping[Key, float], grouped: frozenset[str]) -> set[Key]:
    """Values of experts whose rows are in other places, by errors in the order of the calls.

    Their error is a quarter of their size, or several times what the values just before them have: norm and router.
    """
    if not grouped:
        return set()
    found, before = set(), deque([0.0], maxlen=4)
    for key, error in errors.items():
        if not any(key[1].startswith(f"{path}.") for path in grouped):
            before.append(error)
        elif error > min(MOVED, FACTOR * max(before)):
            found.add(key)
    return found


def relative_error(clean: SiteTally, other: SiteTally | None) -> float:
    """|other - clean| / |clean|, from their sketches; 0 for a site that did not run again."""
    if other is None or not clean.norm:
        return 0.0
    return float((other.sketch() - clean.sketch()).norm()) / clean.norm


class OneUlp:
    """Puts noise of some units in the last place on everything that is computed in its `with` block."""

    def __init__(self, layout: Layout, unit: float, *, seed: int, factor: float = 1.0) -> None:
        self._random = keyed(seed, "one ulp", unit, factor)
        self._table = torch.from_numpy(self._random.uniform(-factor, factor, 2 * _TABLE).astype(np.float32))
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
