"""What smoothing does to the logits: by how much they move, and by how much rounding may move them.

In exact arithmetic a fold moves nothing. In a float dtype each folded weight is rounded once more, unless its scale is
a power of two. What a rounding of these weights does to this model is measured: they are rounded once again, up or down
by chance, and the logits may move by some times as much as that moves them; never by more than their own spread. Where
no fold rounded, that is nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..capturing import non_finite
from ..measure.batches import EvaluationSet
from ..sites import Layout

__all__ = ["LogitChange", "change", "logits_of"]

KEPT_BYTES = 2**27
"""of the logits that are compared: 680 tokens of a vocabulary of 49,152"""
ROUNDINGS = 8
"""times as far as one more rounding of the folded weights moves the logits, they may move"""
EXACT = 4
"""roundings of the spread that they may always move by: what is scaled may become too small to keep its bits"""


@dataclass(frozen=True)
class LogitChange:
    """How far the logits moved."""

    largest: float
    """abs difference"""
    spread: float
    """standard deviation of the logits of a token, over the vocabulary"""
    bound: float
    """the largest difference that rounding can explain"""
    tokens: int
    """that were compared"""

    @property
    def is_rounding(self) -> bool:
        """True if the function is the same up to rounding."""
        return self.largest <= self.bound


def logits_of(model: nn.Module, data: EvaluationSet, *, layout: Layout) -> list[Tensor]:
    """The logits of the first tokens of the data, as many as are worth keeping."""
    device, found, left = next(model.parameters()).device, list[Tensor](), KEPT_BYTES
    for batch in data:
        with torch.no_grad():
            logits = model(**batch.inputs(device)).logits[batch.attention_mask.bool().to(device)]
        if not bool(logits.isfinite().all()):
            raise non_finite("the model", model, batch.inputs(device), layout=layout)
        found.append(logits[: max(left // (4 * logits.shape[-1]), 1)].float().cpu())
        left -= found[-1].nbytes
        if left < 4 * logits.shape[-1]:
            break
    return found


def change(
    before: list[Tensor], after: list[Tensor], nudged: list[Tensor] | None, *, dtype: torch.dtype
) -> LogitChange:
    """How far the logits move, and how far they may.

    Args:
        before: as the model gave them.
        after: with the folded weights.
        nudged: with the folded weights rounded once more; None where no fold rounded.
        dtype: of the model.
    """
    a, b = torch.cat(before), torch.cat(after)
    spread = float(a.std(-1).mean())
    bound = EXACT * torch.finfo(dtype).eps * spread
    if nudged is not None:
        bound += ROUNDINGS * _furthest(b, torch.cat(nudged))
    return LogitChange(_furthest(a, b), spread, min(bound, spread), len(a))


def _furthest(a: Tensor, b: Tensor) -> float:
    return float((b - a).abs().max())
