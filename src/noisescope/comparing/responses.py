"""How the logits answer to a small error at the output of each block: rows of the Jacobian, by backward passes.

One backward pass from one direction of the logits at one position gives the derivative of that direction by the output
of every block. A direction lies in the range of the output projection, where all that the blocks do to the logits must
lie; as many directions as the model is wide say everything about one position. No gradient is left on the model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import ModelError
from ..injection import forwards_replaced
from ..injection.survey import kept_inputs
from ..keys import Key
from ..sites import Layout

__all__ = ["PASSES_PER_LAYER", "Responses", "View", "logits_of"]

PASSES_PER_LAYER = 20
"""backward passes that are made for each block, at most; each costs about as much as a forward pass"""
MEMORY_BYTES = 2**32
"""derivatives that are held at a time; where there are more, some blocks are passed through again"""


@dataclass(frozen=True)
class View:
    """What is looked at: some positions of the logits, in an orthonormal basis of the range of the head."""

    positions: tuple[int, ...]
    basis: Tensor
    """of all that the head can give: vocabulary x width"""
    turn: Tensor
    """the directions that are looked at: width x directions"""

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, tokens: int, *, seed: int) -> "View":
        """Every direction of as many positions as the passes are enough for, the last one first."""
        heads = [module for module, layer in layout.layer.items() if layer == "head"]
        weight = getattr(heads[0], "weight", None) if heads else None
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise ModelError(f"{type(model).__name__}: no output projection found, in whose range a fingerprint lies")
        wide = weight.detach().float()
        values, vectors = torch.linalg.eigh((wide.T @ wide).double())
        there = values > 1e-10 * values[-1]
        basis = wide @ (vectors[:, there] / values[there].sqrt()).float()
        width, passes = basis.shape[1], PASSES_PER_LAYER * len(layout.blocks)
        turn = torch.eye(width)
        if width > passes:
            turn = torch.linalg.qr(torch.randn(width, passes, generator=Key(seed, "fingerprint").generator()))[0]
        count = min(tokens, max(1, passes // width))
        positions = tuple(tokens * (count - at) // count - 1 for at in range(count))
        return cls(positions, basis, turn.to(basis.device))

    def __call__(self, logits: Tensor) -> Tensor:
        """Rows x (positions x directions)."""
        return (logits[:, list(self.positions)].float() @ self.basis @ self.turn).flatten(1)

    def share_inside(self, deviation: Tensor) -> float:
        """How much of the energy of a deviation at these positions is in what the head can give."""
        here = deviation[:, list(self.positions)]
        whole = float(here.double().square().sum())
        return float((here.float() @ self.basis).double().square().sum()) / whole if whole else 0.0


class Responses:
    """One forward pass with its graph, for derivatives by the output of every block."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any], layout: Layout) -> None:
        self.passes = 1.0
        self._hidden: list[Tensor | None] = [None] * len(layout.blocks)
        watched = {block: partial(self._keep, at) for at, block in enumerate(layout.blocks)}
        with torch.enable_grad(), forwards_replaced(watched):
            self.logits = logits_of(model, inputs)

    def _keep(self, at: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        leaves, shape = tree_flatten(forward(*args, **kwargs))
        place = next((place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)), None)
        if place is None:
            raise ModelError(f"block {at} returned no tensor; it has no derivative")
        if at == 0:  # what comes before needs no graph, and this one does even where no parameter has a gradient
            leaves[place] = leaves[place].detach().requires_grad_()
        self._hidden[at] = leaves[place]
        return tree_unflatten(leaves, shape)

    @property
    def hidden(self) -> list[Tensor]:
        """The blocks' outputs, rows x tokens x channels."""
        if any(found is None for found in self._hidden):
            raise ModelError("a block did not run in the forward pass; it has no derivative")
        return [found for found in self._hidden if found is not None]

    def derivative(self, seen: Tensor, *, first: int = 0) -> list[Tensor]:
        """d seen / d output, for each of the blocks from `first` on; `seen` is a number made from the logits."""
        hidden = self.hidden
        self.passes += 1 - first / len(hidden)
        return list(torch.autograd.grad(seen, hidden[first:], retain_graph=True))

    def jacobians(self, view: View, step: Callable[[], None]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of each block, the last first: layer, derivative (directions x rows x tokens x channels), output."""
        with torch.enable_grad():
            seen = view(self.logits).sum(0).unbind()  # rows do not see each other: one pass serves them all
        hidden = self.hidden
        size = len(seen) * hidden[0].numel() * 4
        together = max(1, MEMORY_BYTES // size)
        for end in range(len(hidden), 0, -together):
            first = max(0, end - together)
            held = [torch.empty(len(seen), *hidden[at].shape) for at in range(first, end)]
            for number, one in enumerate(seen):
                for kept, found in zip(held, self.derivative(one, first=first), strict=False):
                    kept[number] = found.float().cpu()
            for at in range(end - 1, first - 1, -1):
                yield at, held.pop(), hidden[at].detach().float().cpu()
                step()


def logits_of(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Rows x tokens x vocabulary."""
    logits = getattr(model(**kept_inputs(inputs)), "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise ModelError(f"{type(model).__name__}: expected a causal language model, one that predicts next tokens")
    return logits
