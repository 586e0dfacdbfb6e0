"""What smoothing has done to the logits: by how much they moved, and by how much rounding may move them.

In exact arithmetic a fold moves nothing. In a float dtype each changed weight is rounded once more, so that the logits
move by some roundings; the bound grows with the root of the number of folds, as independent roundings add up. By as
much as their own spread nothing rounds them, whatever the dtype.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from ..capturing import non_finite
from ..measure.batches import EvaluationSet
from ..sites import Layout

__all__ = ["LogitChange", "change", "logits_of"]

KEPT_BYTES = 2**27
"""of the logits that are compared: 680 tokens of a vocabulary of 49,152"""
ROUNDINGS = 100
"""allowed for each root of the number of folds; the default model, 30 layers deep, moves by a third of that"""


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


def change(before: list[Tensor], after: list[Tensor], *, folds: int, dtype: torch.dtype) -> LogitChange:
    """How far the logits moved, and how far so many folds may move them."""
    a, b = torch.cat(before), torch.cat(after)
    spread = float(a.std(-1).mean())
    bound = min(ROUNDINGS * sqrt(folds) * torch.finfo(dtype).eps, 1.0) * spread
    return LogitChange(float((b - a).abs().max()), spread, bound, len(a))
