"""What a model predicts on a batch, and labels for it: sampled from the model itself, or read from the data.

Sampled labels make squared gradients the true Fisher information; the data's own tokens make them the empirical one,
which is something else wherever the model does not fit its data.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError, ModelError
from ..keys import Key
from .batches import Batch, EvaluationSet
from .token_rows import pack, unpack

__all__ = ["Tokens", "as_batch", "as_batches", "log_likelihood", "predicted_logits", "sample_labels"]

Tokens: TypeAlias = EvaluationSet | Batch | Mapping[str, Tensor] | Iterable[Batch | Mapping[str, Tensor]]
"""One batch or several: ours, or dictionaries of tensors with `input_ids` as a DataLoader gives them."""


def as_batches(data: Tokens) -> Iterator[Batch]:
    """The batches of any form of token data, one after the other; nothing is read ahead."""
    if isinstance(data, (Batch, Mapping)):
        data = (data,)
    if isinstance(data, (str, Tensor)) or not isinstance(data, Iterable):
        raise InputError(f"batches: got {type(data).__name__}, expected dictionaries of tensors with input_ids")
    for number, given in enumerate(data):
        yield as_batch(given, where=f"batches[{number}]")


def as_batch(given: Batch | Mapping[str, Tensor], *, where: str = "batch") -> Batch:
    """A batch from `input_ids` and `attention_mask`, padded at the end; rows without tokens are dropped."""
    if isinstance(given, Batch):
        return given
    rows = tuple(unpack(given, where=where))
    if not rows:
        raise InputError(f"{where}: has no tokens")
    (batch,) = pack(rows, range(len(rows)), batch_size=len(rows))
    return batch


def predicted_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of the predictions that count, predictions x vocabulary, in float32 or wider, with their graph."""
    device = next(model.parameters()).device
    logits = getattr(model(**batch.inputs(device)), "logits", None)
    if not isinstance(logits, Tensor) or logits.shape[:2] != batch.input_ids.shape:
        raise ModelError(
            f"{type(model).__name__}: its output has no logits per token, expected a causal language model"
        )
    counted = logits[:, :-1][batch.predicted.to(logits.device)]
    return counted if counted.dtype == torch.float64 else counted.float()


def sample_labels(logits: Tensor, key: Key) -> Tensor:
    """One label for each prediction, drawn from the model's own distribution, independently given the text."""
    probabilities = logits.detach().softmax(-1)
    if not bool(probabilities.isfinite().all()):
        raise ModelError("the model's output is not finite, so that no label can be sampled from it")
    return torch.multinomial(probabilities, 1, generator=key.generator(logits.device)).squeeze(1)


def log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-likelihood of the labels in nats, summed over predictions."""
    return -F.cross_entropy(logits, labels.to(logits.device), reduction="sum")
