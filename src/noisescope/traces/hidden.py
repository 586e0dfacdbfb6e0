"""The hidden states that layers are given: kept in full by a reference, and fed to a suspect.

A suspect whose every layer is given the reference's input shows, behind each layer, the error of that layer alone: what
it inherits is taken away. Layers are here the blocks, the final norms and the head. Whatever else of the same width and
number of dimensions a layer is given is fed too: a decoder's block gets the encoder's states.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import InputError
from ..injection import forwards_replaced
from ..sites import Layout

__all__ = ["Hidden", "States"]

States: TypeAlias = Mapping[str, Tensor]
"""of one forward pass: layer and number of the argument, "7.0" -> what it was given"""


class Hidden:
    """What the layers of a model were given in a run, for each forward pass."""

    def __init__(self, passes: Sequence[States] = ()) -> None:
        self.passes: list[dict[str, Tensor]] = [dict(states) for states in passes]

    def kept(self, layout: Layout) -> AbstractContextManager[None]:
        """Keeps what they are given in the passes that run inside."""
        self.passes = []
        step = _Step()
        return forwards_replaced({layer: partial(self._keep, step, at) for at, layer in enumerate(_layers(layout))})

    def fed(self, layout: Layout) -> AbstractContextManager[None]:
        """Every layer is given in the passes that run inside what it was given in these."""
        step = _Step()
        return forwards_replaced({layer: partial(self._feed, step, at) for at, layer in enumerate(_layers(layout))})

    def _keep(self, step: "_Step", at: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if step.begins(at):
            self.passes.append({})
        leaves = tree_flatten((args, kwargs))[0]
        with torch._C.DisableTorchFunction():
            copies = {f"{at}.{k}": leaves[n].detach().cpu().clone() for k, n in enumerate(_states(leaves))}
        self.passes[-1] |= copies
        return forward(*args, **kwargs)

    def _feed(self, step: "_Step", at: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        step.begins(at)
        if step.number >= len(self.passes):
            raise InputError(f"inputs_from: holds {len(self.passes)} forward passes, and this run has more")
        leaves, shape = tree_flatten((args, kwargs))
        for k, n in enumerate(_states(leaves)):
            if (state := self.passes[step.number].get(f"{at}.{k}")) is not None:
                leaves[n] = _like(state, leaves[n])
        args, kwargs = tree_unflatten(leaves, shape)
        return forward(*args, **kwargs)


class _Step:
    """Which forward pass is running: a new one begins when a layer runs that has run in this one."""

    def __init__(self) -> None:
        self.number = -1
        self._seen: set[int] = set()

    def begins(self, at: int) -> bool:
        begins = self.number < 0 or at in self._seen
        if begins:
            self.number += 1
            self._seen = set()
        self._seen.add(at)
        return begins


def _layers(layout: Layout) -> list[nn.Module]:
    return [*layout.blocks, *(module for module, layer in layout.layer.items() if layer in ("final_norm", "head"))]


def _states(leaves: Sequence[Any]) -> list[int]:
    """Where the hidden states are: the first tensor of numbers, and others as wide."""
    found = [
        at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim
    ]
    first = leaves[found[0]] if found else None
    return [at for at in found if first is not None and _is_alike(leaves[at], first)]


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return one.ndim == other.ndim and one.shape[-1] == other.shape[-1]


def _like(state: Tensor, given: Tensor) -> Tensor:
    if given.shape != state.shape:
        got, expected = (tuple(tensor.shape) for tensor in (given, state))
        raise InputError(f"inputs_from: holds hidden states of shape {expected}, and this run has {got}")
    with torch._C.DisableTorchFunction():
        return state.to(given)
