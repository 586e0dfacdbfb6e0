"""Numbers <G, e>, gathered while gradients pass: the gradient by each weight times what each format does to it.

G is the gradient, by a weight, of whatever is asked for, summed over one sequence; e = Q(W) - W. No gradient of a
parameter is kept: G is made a part of a weight at a time, within a cache, and used at once. Rounding errors are kept
from one batch to the next as long as they fit. The same for activations, with e = Q(x) - x and the gradient by x.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..capturing import non_finite
from ..errors import InputError, ModelError
from ..injection import Replacement, forwards_replaced
from ..keys import Key
from ..measure.batches import Batch
from ..measure.scoring import first_bad_row
from ..noise.formats import Format
from ..sites import Layout
from .weights import Weight

__all__ = ["Asked", "Gathering", "Gradient"]

CACHE_BYTES = 2 << 30
"""of rounding errors that are kept from one batch to the next; what does not fit is rounded again each time"""
AT_ONCE = 2**19
"""elements of gradients, sequences x part of a weight, that are held at a time: what a cache holds"""

Gradient: TypeAlias = Callable[[Tensor, Batch], Tensor]
"""logits of a batch -> the gradient, by them, of what is asked for"""


@dataclass(frozen=True)
class Asked:
    """Formats of weights and of activations, and whether squares are gathered too."""

    weights: tuple[Format, ...]
    activations: tuple[Format, ...]
    diagonal: bool
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        """As a map has them: those of activations as `none/int8`."""
        return tuple(map(str, self.weights)) + tuple(f"none/{form}" for form in self.activations)

    def __post_init__(self) -> None:
        if not self.weights and not self.activations:
            raise InputError("formats: got none, expected some such as mxfp4 int8")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"formats: got one of {' '.join(self.names)} twice")


class Gathering:
    """The numbers <G, e> of all weights, gathered while gradients pass."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        asked: Asked,
        *,
        cache_bytes: int = CACHE_BYTES,
        rounded: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.weights, self.asked = weights, asked
        self._errors = _Errors(asked, cache_bytes)
        self._rounded = rounded or {}
        """path -> what its module multiplies with in place of the weight"""
        self._leaf: list[Tensor] = []
        self._inputs: dict[int, str] = {}
        """storage of an input -> the first weight that it met, in this pass"""
        self._groups: dict[str, str] = {}
        self._rows = 0
        self._now: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._found: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64] | None]]] = {}
        self._before = 0
        """sequences of earlier batches"""
        self.sequences: list[NDArray[np.int64]] = []
        self.tokens: list[NDArray[np.float64]] = []

    # --- one batch --------------------------------------------------------------------------------------------------

    def run(self, model: nn.Module, batch: Batch, gradients: Sequence[Gradient], layout: Layout) -> None:
        """A forward pass, and a backward pass for each gradient."""
        with forwards_replaced(self._replacements(layout.blocks[0])):
            self._run(model, batch, gradients, layout)

    def _run(self, model: nn.Module, batch: Batch, gradients: Sequence[Gradient], layout: Layout) -> None:
        device = next(model.parameters()).device
        self._rows = batch.rows
        self._leaf.clear()
        self._inputs.clear()
        with torch.inference_mode(False), torch.enable_grad():
            logits: Tensor = model(**batch.inputs(device)).logits
        if first_bad_row(logits, batch) is not None:
            raise non_finite("the model", model, batch.inputs(device), layout=layout)
        for number, gradient in enumerate(gradients, start=1):
            self._now = {}
            given = gradient(logits.detach(), batch)
            torch.autograd.grad(logits, self._leaf, given, retain_graph=number < len(gradients), allow_unused=True)
            self.tokens.append(batch.predicted.sum(1).numpy().astype(np.float64))
            self.sequences.append(self._before + np.arange(batch.rows))
            for path in self.weights:
                self._found.setdefault(path, []).append(self._numbers(path))
        self._leaf.clear()
        self._before += batch.rows

    def _numbers(self, path: str) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        if path not in self._now:  # a weight that the output does not depend on
            nothing = np.zeros((self._rows, len(self.asked.names)))
            return nothing, nothing if self.asked.diagonal else None
        projected, squares = self._now[path]
        return projected.double().cpu().numpy(), None if squares is None else squares.double().cpu().numpy()

    @property
    def called(self) -> dict[str, Weight]:
        """Path -> weight, of those whose module was called."""
        if not self.tokens:
            raise InputError("data: no batches; expected an evaluation set or dicts of tensors")
        found = {path: weight for path, weight in self.weights.items() if path in self._groups}
        if not found:
            raise ModelError(f"{next(iter(self.weights))}: was not called, nor was any other linear of the blocks")
        return found

    @property
    def projections(self) -> NDArray[np.float64]:
        """Weights that were called x samples x formats; a sample is one gradient of one sequence."""
        return np.stack([np.concatenate([part[0] for part in self._found[path]]) for path in self.called])

    @property
    def squares(self) -> NDArray[np.float64] | None:
        """The same shape: sums of squares, element by element; None if they were not asked for."""
        if not self.asked.diagonal:
            return None
        return np.stack([np.concatenate([part[1] for part in self._found[path]]) for path in self.called])

    def group(self, weight: Weight) -> str:
        """The path of the first weight that is stored together with this one."""
        return self._groups.get(weight.path, weight.path)

    # --- modules that tell their gradients --------------------------------------------------------------------------

    def _replacements(self, first_block: nn.Module) -> dict[nn.Module, Replacement]:
        """Forwards of the weights' modules that show what passes; the first block begins the graph."""
        found: dict[nn.Module, Replacement] = {
            module: self._telling(weight) for weight in self.weights.values() for module in weight.modules
        }
        return {first_block: self._beginning, **found}

    def _beginning(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Gradients are asked for from the first block's input on, whatever the parameters say."""
        hidden = args[0] if args else kwargs["hidden_states"]
        leaf = hidden.detach().requires_grad_()
        self._leaf.append(leaf)
        if args:
            return original(leaf, *args[1:], **kwargs)
        return original(**{**kwargs, "hidden_states": leaf})

    def _telling(self, weight: Weight) -> Replacement:
        def forward(original: Callable[..., Any], given: Tensor) -> Tensor:
            self._note_group(weight, given)
            matrix = self._rounded.get(weight.path, weight.value.detach())
            out: Tensor = _Tell.apply(given, original, weight, matrix, self._arrived)  # type: ignore[no-untyped-call]
            return out

        return forward

    def _note_group(self, weight: Weight, given: Tensor) -> None:
        """Weights of one module that meet the same input, such as those of q, k and v, are stored together."""
        around = weight.path.rpartition(".")[0]
        key = hash((around, given.data_ptr(), tuple(given.shape), given._version))
        self._groups.setdefault(weight.path, self._inputs.setdefault(key, weight.path))

    def _arrived(self, weight: Weight, given: Tensor, grad: Tensor, grad_input: Tensor) -> None:
        given, grad = (self._by_sequence(weight, part) for part in (given, grad))
        parts = [self._projected(weight, given, grad)] if self.asked.weights else []
        if self.asked.activations:
            parts.append(self._of_activations(given, self._by_sequence(weight, grad_input)))
        projected = torch.cat([part[0] for part in parts], 1)
        squares = torch.cat([part[1] for part in parts], 1) if self.asked.diagonal else None
        if weight.path in self._now:  # a module that is called again
            before, squared = self._now[weight.path]
            projected = before + projected
            squares = None if squares is None or squared is None else squares + squared
        self._now[weight.path] = projected, squares

    def _by_sequence(self, weight: Weight, value: Tensor) -> Tensor:
        """Sequences x tokens x channels, in float32."""
        value = value.detach()
        value = value if value.dtype == torch.float64 else value.float()
        if value.ndim >= 3 and len(value) == self._rows:
            return value.flatten(1, -2)
        if value.ndim == 2 and len(value) % self._rows == 0:
            return value.view(self._rows, -1, value.shape[-1])
        raise ModelError(
            f"{weight.path}: its input {list(value.shape)} is not ordered by sequence, so that the effect of a format "
            "there cannot be told"
        )

    def _projected(self, weight: Weight, given: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """<G, e> of each sequence and format, and the sum of their squares element by element."""
        first, second = (grad, given) if weight.axis == 1 else (given, grad)  # G has the layout of the weight
        rows = max(1, AT_ONCE // (len(given) * second.shape[-1]))
        found = given.new_zeros(len(given), len(self.asked.weights))
        squares = torch.zeros_like(found)
        errors = self._errors.of(weight)
        for start in range(0, first.shape[-1], rows):
            some = first[..., start : start + rows].mT @ second
            error = errors[:, start : start + rows].to(some.dtype).flatten(1)
            found += some.flatten(1) @ error.T
            if self.asked.diagonal:
                squares += some.square_().flatten(1) @ error.square_().T
        return found, squares

    def _of_activations(self, given: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for form in self.asked.activations:
            product = grad * (form.round(given, key=Key(self.asked.seed, "input")) - given)
            found.append((product.sum((1, 2)), product.square().sum((1, 2))))
        return torch.stack([one for one, _ in found], 1), torch.stack([two for _, two in found], 1)


class _Tell(torch.autograd.Function):
    """A linear that shows its input and the gradient of its output; its parameters get none."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, compute: Any, weight: Weight, matrix: Tensor, arrived: Any) -> Tensor:
        ctx.save_for_backward(given)
        ctx.weight, ctx.matrix, ctx.arrived = weight, matrix, arrived
        out: Tensor = compute(given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (given,) = ctx.saved_tensors
        weight: Weight = ctx.weight
        grad_input = grad @ (ctx.matrix if weight.axis == 1 else ctx.matrix.T)
        ctx.arrived(weight, given, grad, grad_input)
        return grad_input, None, None, None, None


class _Errors:
    """Q(W) - W of every weight in every format, formats first; in bfloat16, as many as fit."""

    def __init__(self, asked: Asked, cache_bytes: int) -> None:
        self._asked = asked
        self._kept: dict[str, Tensor] = {}
        self._room = cache_bytes

    def of(self, weight: Weight) -> Tensor:
        """In bfloat16: what an error loses by that is a hundredth of what it is known to."""
        if (kept := self._kept.get(weight.path)) is not None:
            return kept
        value, key = weight.value.detach(), Key(self._asked.seed, f"{weight.path}.weight")
        wide = value if value.dtype == torch.float64 else value.float()
        found = torch.stack(
            [(form.round(wide, axis=weight.axis, key=key) - wide).bfloat16() for form in self._asked.weights]
        )
        size = found.numel() * found.element_size()
        if size <= self._room:
            self._room -= size
            self._kept[weight.path] = found
        return found
