"""What a model is measured on: rows of tokens, and which of them are predicted."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

__all__ = ["Batch", "EvaluationSet"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of tokens that go through the model together; padding stands at the end of a row."""

    input_ids: Tensor
    """rows x tokens, int64"""
    attention_mask: Tensor
    """rows x tokens, 1 where there is a token"""
    predicted: Tensor
    """rows x (tokens - 1), bool: True at t where the model's prediction at t, of token t + 1, counts"""
    samples: tuple[int, ...]
    """the sample that each row belongs to; the rows of a multiple-choice sample are its choices"""

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.input_ids)

    @property
    def padded(self) -> bool:
        """True if some row is shorter than the longest."""
        return not bool(self.attention_mask.all())

    def inputs(self, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Keyword arguments for a Hugging Face model; the mask only where it says something."""
        given: dict[str, Any] = {"input_ids": self.input_ids.to(device), "use_cache": False}
        return given | ({"attention_mask": self.attention_mask.to(device)} if self.padded else {})

    @property
    def targets(self) -> Tensor:
        """The tokens to predict, one for each True of `predicted`, row by row."""
        return self.input_ids[:, 1:][self.predicted]

    @property
    def row_of_target(self) -> Tensor:
        """The row of each target."""
        return torch.arange(self.rows).unsqueeze(1).expand_as(self.predicted)[self.predicted]


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Batches with a name; what else the data says (choices, answers) is in `task`."""

    name: str
    batches: tuple[Batch, ...]
    task: Any = field(default=None, repr=False)
    """how accuracy is scored where there are labels; None: the next token"""

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __repr__(self) -> str:
        return f"EvaluationSet({self.name!r}, rows={self.rows}, tokens={self.tokens}, batches={len(self.batches)})"

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return sum(int(batch.attention_mask.sum()) for batch in self.batches)

    @property
    def predicted_tokens(self) -> int:
        """Predictions that count."""
        return sum(int(batch.predicted.sum()) for batch in self.batches)

    @cached_property
    def chance(self) -> float:
        """The accuracy of guessing: the task's, or that of always saying the most frequent token."""
        if self.task is not None:
            return float(self.task.chance)
        counts = torch.cat([batch.targets for batch in self.batches]).unique(return_counts=True)[1]
        return float(counts.max()) / self.predicted_tokens

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell two sets apart: by token ids, which are predicted, and the labels."""
        digest = sha256()
        for batch in self.batches:
            digest.update(repr((tuple(batch.input_ids.shape), batch.samples)).encode())
            for part in (batch.input_ids, batch.attention_mask.long(), batch.predicted.to(torch.uint8)):
                digest.update(part.contiguous().numpy().tobytes())
        if self.task is not None:
            digest.update(repr(self.task).encode())
        return digest.hexdigest()[:16]
