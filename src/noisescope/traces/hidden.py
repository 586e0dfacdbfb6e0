"""The hidden states between layers: kept in full by a reference, and fed to a suspect.

A suspect whose every layer is given the reference's input shows, behind each layer, the error of that layer alone: what
it inherits is taken away. Layers run as they are; what they return is then replaced by what the reference had. Layers
are here the blocks and the final norms.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import InputError
from ..injection import forwards_replaced
from ..sites import Layout

__all__ = ["Hidden", "states_of"]

States = Mapping[int, Tensor]
"""of one forward pass: what the first block was given is 0, what layer n returned is n + 1"""


class Hidden:
    """The hidden states of a run, one list for each forward pass."""

    def __init__(self, passes: Sequence[States] = ()) -> None:
        self.passes: list[dict[int, Tensor]] = [dict(states) for states in passes]

    def kept(self, layout: Layout) -> AbstractContextManager[None]:
        """Keeps those of the passes that run inside."""
        self.passes = []
        return forwards_replaced({layer: partial(self._keep, at) for at, layer in enumerate(_layers(layout))})

    def fed(self, layout: Layout) -> AbstractContextManager[None]:
        """Every layer of the passes that run inside is given what it was given in these."""
        step = _Step(self.passes)
        return forwards_replaced({layer: partial(step.feed, at) for at, layer in enumerate(_layers(layout))})

    def _keep(self, at: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if at == 0:
            self.passes.append({0: _copy(_first(args, kwargs))})
        returned = forward(*args, **kwargs)
        if self.passes:  # what runs before the first block belongs to no pass
            self.passes[-1][at + 1] = _copy(_first((returned,), {}))
        return returned


def states_of(layout: Layout) -> int:
    """How many hidden states a forward pass has."""
    return len(_layers(layout)) + 1


def _layers(layout: Layout) -> list[nn.Module]:
    return [*layout.blocks, *(module for module, layer in layout.layer.items() if layer == "final_norm")]


class _Step:
    """Which pass is being fed."""

    def __init__(self, passes: Sequence[States]) -> None:
        self._passes, self._at = passes, -1

    def feed(self, at: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if at == 0:
            self._at += 1
            if self._at >= len(self._passes):
                raise InputError(f"inputs_from: holds {len(self._passes)} forward passes, and this run has more")
            args, kwargs = _replaced((args, kwargs), self._passes[self._at][0])
        returned = forward(*args, **kwargs)
        kept = self._passes[self._at].get(at + 1) if self._at >= 0 else None
        return returned if kept is None else _replaced(returned, kept)


def _first(args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    found = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not found:
        raise InputError("inputs: a block is given, or returns, no tensor of numbers; its input cannot be kept")
    return found[0]


def _copy(state: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return state.detach().cpu().clone()


def _replaced(given: Any, state: Tensor) -> Any:
    """The same structure with its first tensor of numbers replaced, in that one's dtype and on its device."""
    leaves, shape = tree_flatten(given)
    at = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point())
    if leaves[at].shape != state.shape:
        got, expected = (tuple(tensor.shape) for tensor in (leaves[at], state))
        raise InputError(f"inputs_from: holds hidden states of shape {expected}, and this model has {got}")
    with torch._C.DisableTorchFunction():
        leaves[at] = state.to(leaves[at])
    return tree_unflatten(leaves, shape)
