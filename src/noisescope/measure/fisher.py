"""Fisher information of the parameters: how far the output moves when a parameter does.

    fisher = fisher_diagonal(model, data)
    for layer, curvature in fisher.layers.items():
        print(layer, curvature.trace)                    # 7 41.3 [35.2, 48.5]

The true Fisher information takes labels from the model itself. Given the text x, labels y_t ~ p(. | x up to t) are
independent, and the score, the gradient of log p(y_t), has mean zero. So in the square of a gradient that was summed
over the positions and sequences of a batch all cross terms have mean zero, and one backward pass of the sum gives

    E (sum_t d log p(y_t) / dw)^2 = sum_t E (d log p(y_t) / dw)^2

without a bias. Everything is divided by the number of predictions: nats per predicted token, as in the map.

The empirical Fisher information takes the tokens of the text as labels. Their scores do not have mean zero, so that
gradients of different sequences must be squared before they are added: rows go through the model one by one. It is

    sum over sequences (d log p(sequence) / dw)^2 / predictions,

the gradient being that of the whole sequence.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from ..keys import Key
from ..sites import Layout
from ..specs import Layer
from .batches import Batch
from .curvature import Curvature, by_layer, by_parameter, curvature_json, whole
from .labels import Tokens, as_batches, log_likelihood, predicted_logits, sample_labels
from .parameters import Parameters, differentiating

__all__ = ["Fisher", "estimate_fim_diagonal", "fisher_diagonal"]


@dataclass(frozen=True, eq=False)
class Fisher:
    """Fisher information per predicted token: traces of groups with their intervals, and the diagonal itself.

    Intervals come from how batches differ (with `empirical`, sequences): they cover the choice of text and of labels.
    """

    layers: Mapping[Layer, Curvature]
    parameters: Mapping[str, Curvature]
    total: Curvature
    diagonal: Mapping[str, Tensor] | None
    """parameter name -> one value for each element; None unless it was asked for"""
    predicted_tokens: int
    empirical: bool
    passes: int
    """draws of labels for each batch"""
    cost: float
    """forward-pass equivalents: a forward counts one, a backward two"""

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report, without the diagonal."""
        return {
            "layers": curvature_json(self.layers),
            "parameters": curvature_json(self.parameters),
            "total": self.total.as_json(),
            "predicted_tokens": self.predicted_tokens,
            "empirical": self.empirical,
            "passes": self.passes,
            "cost": self.cost,
        }


def fisher_diagonal(
    model: nn.Module,
    data: Tokens,
    *,
    empirical: bool = False,
    per_parameter: bool = True,
    passes: int = 1,
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    progress: Callable[[], None] | None = None,
) -> Fisher:
    """The diagonal of the Fisher information matrix over data, and its traces by parameter tensor and layer.

    Each batch takes one forward and `passes` backward passes, each with labels of its own. Kept are one gradient and
    one accumulator of the model's size; with `per_parameter=False` no accumulator, only a number for each tensor and
    batch. One element of the diagonal is a mean of batches x passes squares of nearly normal numbers, so that its
    relative error is sqrt(2 / (batches x passes)); traces of tensors and layers are far better. A tensor that a pass
    does not use, such as an expert that no token was sent to, counts zero for it. The model is left as it was.
    """
    if passes < 1 or (empirical and passes > 1):
        expected = "1 for empirical labels, which are given" if empirical else ">= 1"
        raise InputError(f"passes: got {passes}, expected {expected}")
    parameters = Parameters.of(model, layout=layout, blocks=blocks)
    squares = _Squares(parameters, passes, keep=per_parameter)
    with differentiating(model, parameters):
        for step, batch in enumerate(as_batches(data)):
            for part in _rows(batch) if empirical else (batch,):
                if tokens := int(part.predicted.sum()):
                    labels = None if empirical else Key(seed, "fisher.labels", step=step)
                    squares.add(tokens, _scores(model, part, parameters, labels=labels, passes=passes))
            if progress is not None:
                progress()
    return squares.read(empirical=empirical)


def estimate_fim_diagonal(model: nn.Module, batches: Tokens) -> dict[str, Tensor]:
    """Parameter name -> diagonal of the true Fisher information, per predicted token."""
    return dict(fisher_diagonal(model, batches).diagonal or {})


def _rows(batch: Batch) -> Iterator[Batch]:
    """The sequences of a batch, one by one."""
    for at, sample in enumerate(batch.samples):
        row = slice(at, at + 1)
        yield Batch(batch.input_ids[row], batch.attention_mask[row], batch.predicted[row], (sample,))


def _scores(
    model: nn.Module, batch: Batch, parameters: Parameters, *, labels: Key | None, passes: int
) -> Iterator[tuple[Tensor | None, ...]]:
    """Gradients of the summed log-likelihood, one for each draw of labels; without a key, of the batch's own tokens."""
    logits = predicted_logits(model, batch)
    for draw in range(passes):
        targets = batch.targets if labels is None else sample_labels(logits, labels.part(str(draw)))
        likelihood = log_likelihood(logits, targets)
        more = draw < passes - 1
        yield torch.autograd.grad(likelihood, parameters.tensors, retain_graph=more, allow_unused=True)


class _Squares:
    """Sums of squared gradients: for each cluster by tensor, and over all clusters by element."""

    def __init__(self, parameters: Parameters, passes: int, *, keep: bool) -> None:
        self.parameters = parameters
        self.passes = passes
        self.diagonal = [_zeros(tensor) for tensor in parameters.tensors] if keep else None
        self.sums: list[np.ndarray] = []
        self.tokens: list[int] = []

    def add(self, tokens: int, scores: Iterator[tuple[Tensor | None, ...]]) -> None:
        """One cluster: its predictions, and a gradient for each draw of labels, which are averaged."""
        self.sums.append(np.mean(list(map(self._square, scores)), axis=0))  # map lets go of each before the next
        self.tokens.append(tokens)

    def _square(self, score: tuple[Tensor | None, ...]) -> list[float]:
        """The squared norm by tensor; the squares go into the diagonal."""
        return [0.0 if grad is None else self._square_one(at, grad) for at, grad in enumerate(score)]

    def _square_one(self, at: int, grad: Tensor) -> float:
        if self.diagonal is not None:
            wide = grad.to(self.diagonal[at].dtype)
            self.diagonal[at].addcmul_(wide, wide, value=1 / self.passes)
        return float(torch.linalg.vector_norm(grad, dtype=torch.float64).square())

    def read(self, *, empirical: bool) -> Fisher:
        """The figures, once all batches are in."""
        if not self.tokens:
            raise InputError("batches: got no token to predict, expected rows of at least two tokens")
        found = self.parameters, np.array(self.sums), self.tokens
        total = sum(self.tokens)
        return Fisher(
            by_layer(*found, positive=True),
            by_parameter(*found, positive=True),
            whole(*found, positive=True),
            None if self.diagonal is None else self._named(total),
            total,
            empirical,
            self.passes,
            cost=1.0 + 2.0 * self.passes,
        )

    def _named(self, tokens: int) -> dict[str, Tensor]:
        return {name: sums.div_(tokens) for name, sums in zip(self.parameters.names, self.diagonal or (), strict=True)}


def _zeros(tensor: Tensor) -> Tensor:
    """An accumulator: in float32 where the model is narrower."""
    wide = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return torch.zeros_like(tensor, dtype=wide, requires_grad=False)
