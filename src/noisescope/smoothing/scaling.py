"""How a group is scaled, and which alpha does best.

    s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)

x_j is an input channel of the consumers, w_j what they all multiply it with; where several inputs share a channel of
the producer, the maximum is over these too. A channel that is always 0, or that nothing is made of, is left alone.

What an alpha is worth is measured: the error of the consumers' outputs with weights and activations rounded,

    error = mean over tokens of |Q(x / s) Q(s W)^T - x W^T|^2 / |u|^2

where u is what the error of this token is read against: for what a norm feeds, the outputs x W^T themselves; for what a
linear feeds, and is added to the residual stream, the hidden state that leaves the block, since the next norm divides
by that. Token by token, because a few tokens can be a thousand times larger than all others: a sum over tokens
would be theirs alone, and spoil the others' products to better their own.

A group is left as it is unless the best alpha makes the error smaller, so that smoothing never does harm where it is
measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..capturing.persistence import lower_median
from ..measure.intervals import Estimate, ratio
from ..noise.formats import Format
from ..sites import matrix
from .calibrating import Inputs
from .groups import Group

__all__ = ["ALPHAS", "Choice", "Formats", "choose", "outlier_ratio", "scales_of"]

ALPHAS = tuple(tenths / 10 for tenths in range(11))
"""those that are tried"""


@dataclass(frozen=True)
class Formats:
    """What the model is going to be rounded to."""

    weights: Format
    activations: Format


@dataclass(frozen=True, eq=False)
class Choice:
    """The best of the alphas for a group."""

    alpha: float | None
    """None: the group is left as it is"""
    scales: Tensor
    """of the producer's channels"""
    before: Estimate
    """the error without smoothing"""
    after: Estimate


def choose(
    group: Group, inputs: Inputs, formats: Formats, *, alphas: Sequence[float], powers_of_two: bool, forced: bool
) -> Choice:
    """The alpha with the smallest error; with `forced`, the best of them even if it does harm."""
    unscaled = torch.ones(group.width)
    outputs = [inputs.tokens @ _weight(consumer).T for consumer in group.consumers]
    size = inputs.stream if group.offset is None else torch.stack([out.square().sum(1) for out in outputs]).sum(0)
    errors = {}
    for alpha in (None, *alphas):
        scales = unscaled if alpha is None else scales_of(group, inputs, alpha, powers_of_two=powers_of_two)
        found = _errors(group, inputs, outputs, scales, formats)
        errors[alpha] = scales, _by_sample(torch.where(size > 0, found / size, 0.0), inputs)
    before = errors[None][1]
    best = min(alphas, key=lambda alpha: errors[alpha][1].sum())
    alpha = best if forced or errors[best][1].sum() < before.sum() else None
    scales, after = errors[alpha]
    tokens = _by_sample(torch.ones(len(size)), inputs)
    return Choice(alpha, scales, ratio(before, tokens, positive=True), ratio(after, tokens, positive=True))


def scales_of(group: Group, inputs: Inputs, alpha: float, *, powers_of_two: bool = False) -> Tensor:
    """What each channel of the producer is divided by."""
    weights = [_weight(consumer).abs().amax(0) for consumer in group.consumers]
    x, w = group.gathered(inputs.largest).double(), group.gathered(torch.stack(weights).amax(0)).double()
    scales = x**alpha / w ** (1 - alpha)
    scales = torch.where((x > 0) & (w > 0), scales, 1.0)
    return (torch.exp2(scales.log2().round()) if powers_of_two else scales).float()


def outlier_ratio(largest: Tensor) -> float:
    """The largest channel over the median, as in a diagnosis; 0 if all is 0."""
    median = float(lower_median(largest))
    return float(largest.max()) / median if median else 0.0


def _errors(group: Group, inputs: Inputs, outputs: Sequence[Tensor], scales: Tensor, formats: Formats) -> Tensor:
    """The squared error of each token, over all outputs of the consumers."""
    spread = group.spread(scales)
    # the largest of all tokens goes along, so that a scale for the whole tensor is that of the whole data
    rounded = formats.activations.round(torch.cat([inputs.tokens, inputs.largest.unsqueeze(0)]) / spread)[:-1]
    total = torch.zeros(len(rounded))
    for consumer, output in zip(group.consumers, outputs, strict=True):
        total += (rounded @ formats.weights.round(_weight(consumer) * spread).T - output).square().sum(1)
    return total


def _weight(consumer: nn.Module) -> Tensor:
    return matrix(consumer).detach().cpu().float()


def _by_sample(errors: Tensor, inputs: Inputs) -> NDArray[np.float64]:
    """Sums over the tokens of each sample, since tokens of one are not independent."""
    _, owner = inputs.samples.unique(return_inverse=True)
    return np.bincount(owner.numpy(), errors.double().numpy()).astype(np.float64)
