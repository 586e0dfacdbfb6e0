"""The format map: the KL of every number format at every weight, from one pass of gradients.

A format's error is not random: all elements of a weight move together, and for every token alike. With e = Q(W) - W,
and G the gradient by W of the log-likelihood of labels that are sampled from the model's own output, summed over one
sequence, to second order

    KL = 1/2 E[ <G, e>^2 ] / predicted tokens of a sequence,

one number <G, e> a sequence. G is one product more than a backward pass takes; each format is then an inner product
with it. The same for activations, with e = Q(x) - x and the gradient by x. Numbers of weights that change together are
added before they are squared; layers add up afterwards.

The diagonal estimate that other tools use, 1/2 E[ sum G^2 e^2 ], leaves all of the cross terms out. It is there to be
compared with.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..capturing import non_finite
from ..diagnosis.mapping import score_of_sampled
from ..errors import InputError, ModelError
from ..injection import Replacement, forwards_replaced
from ..keys import Key
from ..measure.batches import Batch
from ..measure.labels import Tokens, as_batches
from ..measure.scoring import first_bad_row
from ..noise.formats import Format, parse_format
from ..sites import Layout
from .format_map import FormatMap, Place
from .weights import Weight, find_weights

__all__ = ["map_formats"]

CACHE_BYTES = 2 << 30
"""of rounding errors that are kept from one batch to the next; what does not fit is rounded again each time"""
AT_ONCE = 2**19
"""elements of gradients, sequences x part of a weight, that are held at a time: what a cache holds"""


def map_formats(
    model: nn.Module,
    data: Tokens,
    formats: Collection[str | Format],
    *,
    activations: Collection[str | Format] = (),
    draws: int = 1,
    diagonal: bool = False,
    include: Collection[str] = (),
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    cache_bytes: int = CACHE_BYTES,
    progress: Callable[[], None] | None = None,
) -> FormatMap:
    """The effect of every format at every weight, with standard errors over sequences.

    Use many short sequences: the estimate is a mean of squares, and its relative error is sqrt(2 / sequences). Each
    batch takes one forward, and for each draw of labels a backward pass and one product more for each weight. No
    parameter's gradient is kept, and nothing of the model is changed. Weights whose module was not called are in
    `left_out`, and no place of the map: nothing is known of a format there.

    Args:
        model: a causal language model in 16 or 32 bit, in eval mode.
        data: batches of tokens, or an evaluation set.
        formats: of the weights.
        activations: formats of what the weights are multiplied with.
        draws: of labels, for each sequence.
        diagonal: also the estimate that leaves cross terms out, to compare.
        include: `head`, which is left out otherwise.
        seed: of the labels, and of stochastic rounding.
        layout: of the model, if it is known already.
        blocks: where the blocks are, for a model whose structure is not recognised.
        cache_bytes: memory for rounding errors.
        progress: called after each batch.
    """
    layout = layout or Layout.of(model, blocks=blocks)
    if "embed" in include:
        raise InputError(
            "include: embed has no map; it is emulated only, with quantised(model, ..., include=['embed'])"
        )
    weights = find_weights(layout, include=include)
    asked = _Asked(tuple(map(parse_format, formats)), tuple(map(parse_format, activations)), diagonal, seed)
    gathering = _Gathering(weights, asked, cache_bytes)
    for number, batch in enumerate(as_batches(data)):
        with forwards_replaced(gathering.replacements(layout.blocks[0])):
            gathering.run(model, batch, [Key(seed, f"labels#{draw}", step=number) for draw in range(draws)], layout)
        if progress is not None:
            progress()
    return gathering.read(draws)


@dataclass(frozen=True)
class _Asked:
    weights: tuple[Format, ...]
    activations: tuple[Format, ...]
    diagonal: bool
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.weights)) + tuple(f"none/{form}" for form in self.activations)

    def __post_init__(self) -> None:
        if not self.weights and not self.activations:
            raise InputError("formats: got none, expected some such as mxfp4 int8")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"formats: got one of {' '.join(self.names)} twice")


class _Gathering:
    """The numbers <G, e> of all weights, gathered while gradients pass."""

    def __init__(self, weights: Mapping[str, Weight], asked: _Asked, cache_bytes: int) -> None:
        self.weights, self.asked = weights, asked
        self._errors = _Errors(weights, asked, cache_bytes)
        self._leaf: list[Tensor] = []
        self._inputs: dict[int, str] = {}
        """storage of an input -> the first weight that it met, in this pass"""
        self._groups: dict[str, str] = {}
        self._rows = 0
        self._now: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._found: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64] | None]]] = {}
        self._before = 0
        """sequences of earlier batches"""
        self._sequences: list[NDArray[np.int64]] = []
        self._tokens: list[NDArray[np.float64]] = []

    # --- one batch --------------------------------------------------------------------------------------------------

    def run(self, model: nn.Module, batch: Batch, draws: Sequence[Key], layout: Layout) -> None:
        """A forward pass, and a backward pass for each draw of labels."""
        device = next(model.parameters()).device
        self._rows = batch.rows
        self._leaf.clear()
        self._inputs.clear()
        with torch.inference_mode(False), torch.enable_grad():
            logits: Tensor = model(**batch.inputs(device)).logits
        if first_bad_row(logits, batch) is not None:
            raise non_finite("the model", model, batch.inputs(device), layout=layout)
        for number, key in enumerate(draws):
            self._now = {}
            score = score_of_sampled(logits.detach(), batch, key)
            torch.autograd.grad(logits, self._leaf, score, retain_graph=number < len(draws) - 1, allow_unused=True)
            self._tokens.append(batch.predicted.sum(1).numpy().astype(np.float64))
            self._sequences.append(self._before + np.arange(batch.rows))
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

    def read(self, draws: int) -> FormatMap:
        """Everything that was gathered."""
        if not self._tokens:
            raise InputError("data: no batches; expected an evaluation set or dicts of tensors")
        called = [path for path in self.weights if path in self._groups]
        if not called:
            raise ModelError(f"{next(iter(self.weights))}: was not called, nor was any other linear of the blocks")
        diagonal = None
        if self.asked.diagonal:
            diagonal = np.stack([np.concatenate([part[1] for part in self._found[path]]) for path in called])
        return FormatMap(
            tuple(self._place(self.weights[path]) for path in called),
            self.asked.names,
            np.stack([np.concatenate([part[0] for part in self._found[path]]) for path in called]),
            np.concatenate(self._sequences),
            np.concatenate(self._tokens),
            diagonal,
            # a backward pass is two forwards, the gradients by weights one more
            cost=1.0 + 3.0 * draws,
            left_out=tuple(path for path in self.weights if path not in self._groups),
        )

    def _place(self, weight: Weight) -> Place:
        forms = dict(zip(self.asked.names, self.asked.weights, strict=False))
        bits = {name: form.bits(weight.shape, axis=weight.axis) for name, form in forms.items()}
        group = self._groups.get(weight.path, weight.path)
        return Place(weight.path, weight.layer, group, weight.size, weight.axis, bits)

    # --- modules that tell their gradients --------------------------------------------------------------------------

    def replacements(self, first_block: nn.Module) -> dict[nn.Module, Replacement]:
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
            out: Tensor = _Tell.apply(given, original, weight, self._arrived)  # type: ignore[no-untyped-call]
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
    def forward(ctx: Any, given: Tensor, compute: Any, weight: Weight, arrived: Any) -> Tensor:
        ctx.save_for_backward(given)
        ctx.weight, ctx.arrived = weight, arrived
        out: Tensor = compute(given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        (given,) = ctx.saved_tensors
        weight: Weight = ctx.weight
        matrix = weight.value.detach()
        grad_input = grad @ (matrix if weight.axis == 1 else matrix.T)
        ctx.arrived(weight, given, grad, grad_input)
        return grad_input, None, None, None


class _Errors:
    """Q(W) - W of every weight in every format, formats first; in bfloat16, as many as fit."""

    def __init__(self, weights: Mapping[str, Weight], asked: _Asked, cache_bytes: int) -> None:
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
