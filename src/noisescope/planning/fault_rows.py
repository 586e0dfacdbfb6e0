"""A model on rows of text, and which of their next tokens it gets right: what a fault is measured by.

Rows run in batches of one size, so that the same row gives the same bits in whichever batch it is. Attention is
computed in steps, in clean runs too, where a fault may sit in one of its steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..injection import Injection
from ..measure.batches import EvaluationSet
from ..noise import Noise, RelativeGaussian
from ..sites import Layout
from ..specs import Selection

__all__ = ["BATCH", "Predictions", "Rows", "right"]

BATCH = 16
"""rows that run together"""
NOWHERE = Selection(layers=())


class Predictions(NamedTuple):
    """One element a row: how many next tokens were right, how many had no finite logits, and of how many."""

    correct: NDArray[np.float64]
    non_finite: NDArray[np.float64]
    tokens: NDArray[np.float64]

    def first(self, count: int) -> "Predictions":
        """Those of the first rows."""
        return Predictions(*(part[:count] for part in self))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of tokens, padded at their end, on the device of the model."""

    model: nn.Module
    layout: Layout
    ids: Tensor
    mask: Tensor
    predicted: Tensor
    """rows x (tokens - 1): where a prediction counts"""

    @classmethod
    def of(cls, model: nn.Module, data: EvaluationSet) -> "Rows":
        """The rows of data whose batches are all in one."""
        (batch,) = data.batches
        device = next(model.parameters()).device
        parts = (part.to(device) for part in (batch.input_ids, batch.attention_mask, batch.predicted))
        return cls(model, Layout.of(model), *parts)

    def __len__(self) -> int:
        return len(self.ids)

    def everything(self, run: Callable[[Sequence[int]], Predictions]) -> Predictions:
        """The predictions of all rows, by a function that runs a batch of them."""
        found = []
        for start in range(0, len(self), BATCH):
            some = range(start, min(start + BATCH, len(self)))
            found.append(run([*some, *[start] * (BATCH - len(some))]).first(len(some)))
        return Predictions(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    @cached_property
    def clean(self) -> Predictions:
        """Of the undisturbed model, as `disturbed` runs it."""
        return self.everything(self.disturbed)

    @cached_property
    def clean_plainly(self) -> Predictions:
        """Of the model as it is called by itself."""
        return self.everything(self.plainly)

    def disturbed(
        self, rows: Sequence[int], noise: Noise | None = None, selection: Selection = NOWHERE, *, seed: int = 0
    ) -> Predictions:
        """What the model predicts for a batch of rows with noise in it; attention is computed in steps."""
        injection = Injection(
            noise or RelativeGaussian(0.0), selection, layout=self.layout, seed=seed, strict=False, in_steps=True
        )
        with injection:
            return self.plainly(rows)

    def plainly(self, rows: Sequence[int]) -> Predictions:
        """What it predicts as it is called by itself, or as whoever is open around this makes it."""
        at = torch.tensor([*rows], device=self.ids.device)
        given: dict[str, Any] = {"input_ids": self.ids[at], "use_cache": False}
        if not bool(self.mask.all()):
            given["attention_mask"] = self.mask[at]
        with torch.inference_mode(False), torch.no_grad():
            logits = self.model(**given).logits[:, :-1]
        wanted = self.predicted[at]
        lost = wanted & ~logits.amax(-1).isfinite()
        correct = wanted & right(logits, self.ids[at, 1:])
        return Predictions(*(part.sum(-1).double().cpu().numpy() for part in (correct, lost, wanted)))


def right(logits: Tensor, targets: Tensor) -> Tensor:
    """Where the first choice is the target; never where the largest logit is not finite."""
    return (logits.argmax(-1) == targets) & logits.amax(-1).isfinite()
