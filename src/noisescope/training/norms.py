"""The norms of a model whose weights may get noise, found by structure: modules that forget the scale of their input.

In a mixture of experts those inside experts and routers are left out. A router decides: a little noise in what it sees
sends tokens to other experts, which is another function and no small error. An expert sees few tokens of a batch, and
some batches none: the same noise would be a different dose for each of them. Who wants them names them with `modules`.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import ModelError, NothingMatched
from ..sites import Layout, Selector, Site, is_replaced
from ..specs import Layer, Selection

__all__ = ["NormWeight", "find_norm_weights"]

_ADDED = ("bias", "beta")
"""names of what a norm adds, where it cannot be probed"""
_EXPERTS = "experts"
_ROUTERS = ("router", "gate")


@dataclass(frozen=True)
class NormWeight:
    """What one norm multiplies with."""

    path: str
    """of the norm"""
    name: str
    """of the weight in it"""
    layer: Layer | None
    operator: str
    weight: nn.Parameter

    @property
    def site(self) -> Site:
        """Its place, for draws and statistics."""
        return Site(self.layer, self.operator, f"{self.path}.{self.name}", 0, "forward")


def find_norm_weights(layout: Layout, selection: Selection) -> list[NormWeight]:
    """The weights of all norms that the selection means, each once; an error if there are none."""
    norms = [
        module for module, kind in layout.operator.items() if "norm" in kind and not is_replaced(layout.paths[module])
    ]
    found = {id(norm.weight): norm for module in norms for norm in _weights(layout, module)}
    meant = Selector(selection, layout)
    chosen = [norm for norm in found.values() if meant(norm.layer, norm.operator, norm.path)]
    if selection.modules is None:
        chosen = [norm for norm in chosen if not _in_mixture(layout, norm.path)]
    if not chosen:
        raise NothingMatched(f"{selection.describe()}: {_why(layout, norms, list(found.values()))}")
    for norm in chosen:
        _refuse_sharded(norm)
    return chosen


def _weights(layout: Layout, module: nn.Module) -> Iterable[NormWeight]:
    layer = layout.home[module] if module in layout.home else layout.layer.get(module)
    for name, weight in module.named_parameters(recurse=False):
        if weight.is_floating_point() and not _is_added(module, name, weight):
            yield NormWeight(layout.paths[module], name, layer, layout.operator[module], weight)


def _is_added(module: nn.Module, name: str, weight: nn.Parameter) -> bool:
    """True for what a norm adds to its output, and does not multiply with: it changes what becomes of zeros."""
    zeros = torch.zeros(1, 1, weight.numel(), dtype=weight.dtype, device=weight.device)
    try:
        trial = copy.deepcopy(module)
        with torch.no_grad():
            before = trial.forward(zeros)
            trial.get_parameter(name).add_(1.0)
            return not torch.equal(before, trial.forward(zeros))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return name in _ADDED


def _in_mixture(layout: Layout, path: str) -> bool:
    """True inside experts, and inside what sends tokens to them."""
    names = path.split(".")
    if _EXPERTS in names:
        return True
    routed = {at.rpartition(".")[0] for at in layout.paths.values() if at.rpartition(".")[2] == _EXPERTS}
    return any(names[depth] in _ROUTERS and ".".join(names[:depth]) in routed for depth in range(len(names)))


def _why(layout: Layout, norms: list[nn.Module], weights: list[NormWeight]) -> str:
    name = type(layout.root).__name__
    if not norms:
        return f"{name} has no norms; noise in norm weights needs a model that has"
    if not weights:
        return f"the {len(norms)} norms of {name} have no weights; use OperatorNoise with operators=['norm']"
    return f"none of the {len(weights)} norms of {name} is meant; see `noisescope sites --operators norm`"


def _refuse_sharded(norm: NormWeight) -> None:
    if isinstance(norm.weight, DTensor) or norm.weight.is_meta or not norm.weight.numel():
        raise ModelError(
            f"{norm.path}: its weight is not whole on this device (sharded or offloaded); noise in norm weights needs "
            "them whole: use OperatorNoise, or keep norms out of the sharding"
        )
