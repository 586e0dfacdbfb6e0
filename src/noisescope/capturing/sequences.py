"""Which rows of a value belong to which sequence, and which of them are padding.

A value inside a block has one row of channels for each token that entered the block, as `rows x tokens x channels` or
with the first two flattened into one (GPT-2). Experts are given tokens regrouped: their rows are nobody's in
particular. Attention's products are laid out by head, `rows x heads x tokens x channels` or with the first two
flattened, and have no channels of a token; their padding can be left out all the same (`real_tokens`).

Padding is what the attention mask says that the model was called with, by keyword or by position; the call is looked
up, since torch does not tell its process-wide hooks of keywords.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature

from torch import Tensor, nn

from ..injection.scope import Frame
from ..sites import Layout

__all__ = ["Masks", "Sequences", "grouped_modules", "real_tokens", "sequences_of"]

_MASK = "attention_mask"


@dataclass(frozen=True, eq=False)
class Padding:
    """Which tokens are real, where some are not."""

    real: Tensor
    """rows x tokens, False at padding"""
    where: Tensor
    """positions of the real ones among all tokens, row after row"""
    samples: int
    """rows that have a token"""


@dataclass(frozen=True, eq=False)
class Sequences:
    """The rows of one value: so many sequences of so many tokens."""

    rows: int
    tokens: int
    padding: Padding | None

    @property
    def samples(self) -> int:
        """Sequences that have a token."""
        return self.padding.samples if self.padding is not None else self.rows

    def arrange(self, value: Tensor) -> Tensor:
        """The value as rows x tokens x channels."""
        return value.reshape(self.rows, self.tokens, value.shape[-1])

    def without_padding(self, value: Tensor) -> Tensor:
        """The value's real tokens, one after the other; the value itself if all are."""
        if self.padding is None:
            return value
        return value.reshape(-1, value.shape[-1])[self.padding.where.to(value.device)]


class Masks:
    """The attention mask of the forward pass that runs, read once a pass: on a device reading means waiting."""

    def __init__(self) -> None:
        self._seen: tuple[int, int, Tensor] | None = None
        self._padding: Padding | None = None

    def read(self, mask: Tensor, tokens: int, step: int) -> Padding | None:
        """What the mask says of the last `tokens` of each row; None if it leaves out none of them."""
        if self._seen is None or self._seen[:2] != (step, tokens) or self._seen[2] is not mask:
            real = mask[:, -tokens:] != 0
            where = real.flatten().nonzero().squeeze(1)
            self._seen = step, tokens, mask
            whole = len(where) == real.numel()
            self._padding = None if whole else Padding(real, where, samples=int(real.any(1).sum()))
        return self._padding


def grouped_modules(layout: Layout) -> frozenset[str]:
    """Paths of modules that see tokens regrouped by expert: inside `experts`, or with the experts' weights stacked."""
    return frozenset(
        path for module, path in layout.paths.items() if "experts" in path.split(".") or _is_stacked(module)
    )


def _is_stacked(module: nn.Module) -> bool:
    return any(weight.ndim == 3 for weight in module.parameters(recurse=False))


def sequences_of(value: Tensor, frames: Sequence[Frame], step: int, masks: Masks) -> Sequences | None:
    """How the rows of a value that was just computed belong to sequences; None if they do not, or nobody can tell."""
    found = _entered(value, frames, step, masks)
    if found is None or value.shape[:-1] not in ((found.rows, found.tokens), (found.rows * found.tokens,)):
        return None
    return found


def real_tokens(
    value: Tensor, frames: Sequence[Frame], step: int, masks: Masks, *, by_key: bool = False
) -> Tensor | None:
    """A value without its padding: laid out by token, by token and head, or by head and token.

    `by_key`: its last dimension are tokens too, as of attention's scores. None if there is padding, and nobody can tell
    where.
    """
    found = _entered(value, frames, step, masks)
    if found is None or found.padding is None:
        return value
    rows, tokens = found.rows, found.tokens
    if value.shape[:2] == (rows, tokens) and value.ndim > 2:
        return found.without_padding(value.flatten(2))
    if value.shape[:-1] == (rows * tokens,):
        return found.without_padding(value)
    by_head = value.unflatten(0, (rows, -1)) if value.ndim == 3 and value.shape[0] % rows == 0 else value
    if by_head.ndim != 4 or (by_head.shape[0], by_head.shape[2]) != (rows, tokens):
        return None
    if by_key and by_head.shape[3] == tokens:
        real = found.padding.real.to(value.device)
        return by_head.permute(0, 2, 3, 1)[real.unsqueeze(2) & real.unsqueeze(1)]
    return found.without_padding(by_head.transpose(1, 2).flatten(2))


def _entered(value: Tensor, frames: Sequence[Frame], step: int, masks: Masks) -> Sequences | None:
    """The sequences that entered the block, or that a value outside of blocks has."""
    block = next((index for index, frame in enumerate(frames) if frame.is_block), len(frames))
    shape = frames[block].hidden if block < len(frames) else value.shape
    if shape is None or len(shape) != 3 or not shape[0] * shape[1]:
        return None
    rows, tokens = shape[:2]
    mask = _mask(frames[:block], rows, tokens)
    return Sequences(rows, tokens, None if mask is None else masks.read(mask, tokens, step))


def _mask(frames: Sequence[Frame], rows: int, tokens: int) -> Tensor | None:
    """The mask of the innermost running module around the blocks that was given one by token.

    An encoder's and a decoder's differ, so a module that was given None has none, whatever those around it have. In
    a pass that goes on from cached tokens, or computes the last ones only, the mask's end belongs to it.
    """
    for frame in reversed(frames):
        given, mask = _argument(frame, _MASK)
        if given and (mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)):
            fits = mask is not None and len(mask) == rows and mask.shape[1] >= tokens
            return mask if fits else None
    return None


def _argument(frame: Frame, name: str) -> tuple[bool, object]:
    """Whether a running module was given this argument, and what it is."""
    call = frame.caller.f_locals if frame.caller is not None else {}
    args, kwargs = call.get("args"), call.get("kwargs")
    if isinstance(kwargs, dict) and name in kwargs:
        return True, kwargs[name]
    if isinstance(args, tuple) and len(args) > 1:
        for parameter, value in zip(signature(frame.module.forward).parameters, args, strict=False):
            if parameter == name:
                return True, value
    return False, None
