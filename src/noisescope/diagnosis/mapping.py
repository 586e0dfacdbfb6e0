"""The sensitivity map: every operator of every layer, and every channel, from one forward and backward pass.

For independent noise of relative scale s at a site with value y, to second order in s,

    KL = 1/2 s^2 E[ sum (y g)^2 ] / predicted tokens,

g being the gradient of the log-likelihood of labels sampled from the model's own output, summed over positions: the
Fisher information of the output, carried back to the site. Cells add up. Where the second order ends (a large s) the
map is wrong; `checking` finds out where, by injecting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError, NothingMatched
from ..injection import Watch
from ..keys import Key
from ..measure.batches import Batch, EvaluationSet
from ..measure.intervals import Estimate, ratio
from ..noise import Noise
from ..sites import Layout, Selector, Site
from ..specs import Layer, Selection
from .sensing import Cell, ChannelSums, Sensing

__all__ = ["MOMENTS", "SensitivityMap", "map_sensitivity"]

MOMENTS: Mapping[str, tuple[str, float]] = {
    "relative_gaussian": ("relative", 1.0),
    "uniform": ("relative", 1.0 / 3.0),
    "absolute_gaussian": ("absolute", 1.0),
}
"""error type -> which sums predict it, and the variance of its draw at scale 1"""


@dataclass(frozen=True)
class SensitivityMap:
    """Curvature of the output KL at each cell: KL = 1/2 s^2 curvature, in nats per predicted token."""

    relative: Mapping[Cell, Estimate]
    """for noise relative to the value"""
    absolute: Mapping[Cell, Estimate]
    """for noise of one size everywhere; also the mean Fisher information of the activations, summed over channels"""
    channels: Mapping[str, ChannelSums]
    """site name -> the same by channel, per predicted token"""
    sites: Mapping[str, Site]
    sparsity: Mapping[Layer, float]
    """share of almost-zero values that the activation functions of a layer gave"""
    passes: int
    """draws of labels"""
    cost: float
    """forward-pass equivalents"""

    def predict(self, noise: Noise, scale: float | None = None) -> dict[Cell, Estimate]:
        """The KL that this noise would give at each cell, one cell at a time."""
        kind, variance = moment(noise)
        curvature = self.relative if kind == "relative" else self.absolute
        half = 0.5 * variance * (noise.scale if scale is None else scale) ** 2
        return {cell: found.scaled(half) for cell, found in curvature.items()}


def moment(noise: Noise) -> tuple[str, float]:
    """Which sums predict a noise, and the variance of its draw; an error for noise that is not random and dense."""
    if noise.name not in MOMENTS:
        raise InputError(f'error type "{noise.name}" has no map; it is predicted for {" ".join(MOMENTS)}')
    return MOMENTS[noise.name]


def map_sensitivity(
    model: nn.Module,
    data: EvaluationSet,
    *,
    selection: Selection | None = None,
    passes: int = 2,
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    progress: Callable[[], None] | None = None,
) -> SensitivityMap:
    """The map of a model over data, with standard errors over sequences.

    Each batch takes one forward and `passes` backward passes, each with labels of its own. No parameter's gradient is
    computed, and no flag of the model is changed.
    """
    layout = layout or Layout.of(model, blocks=blocks)
    selection = selection or Selection()
    sensing = Sensing(Selector(selection, layout))
    found = _Gathered()
    for number, batch in enumerate(data):
        _weigh(model, batch, sensing, layout=layout, labels=Key(seed, "labels", step=number), passes=passes)
        found.add(sensing, batch)
        if progress is not None:
            progress()
    if not found.relative:
        raise NothingMatched(f"{selection.describe()}: nothing to map; see `noisescope sites`")
    return found.read(sensing, passes)


def _weigh(model: nn.Module, batch: Batch, sensing: Sensing, *, layout: Layout, labels: Key, passes: int) -> None:
    """One forward pass and its backward passes; the sums are left in `sensing`."""
    device = next(model.parameters()).device
    try:
        while True:
            sensing.start(*batch.input_ids.shape)
            with torch.inference_mode(False), torch.enable_grad(), Watch(sensing, layout=layout, in_steps=True):
                logits: Tensor = model(**batch.inputs(device)).logits
            if not sensing.copy_changed():
                break
        for draw in range(passes):
            upstream = score_of_sampled(logits.detach(), batch, labels.part(str(draw)))
            torch.autograd.grad(logits, sensing.leaves, upstream, retain_graph=draw < passes - 1, allow_unused=True)
    finally:
        sensing.forget()


def score_of_sampled(logits: Tensor, batch: Batch, key: Key) -> Tensor:
    """The gradient, by the logits, of the log-likelihood of labels drawn from them: onehot - p where it counts."""
    counted = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    counted[:, :-1] = batch.predicted.to(logits.device)
    score = torch.zeros_like(logits)
    probabilities = torch.softmax(logits[counted].float(), -1)
    labels = torch.multinomial(probabilities, 1, generator=key.generator(logits.device))
    score[counted] = (
        probabilities.neg_().scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float32)).to(score)
    )
    return score


class _Gathered:
    """Sums per sequence over all batches."""

    def __init__(self) -> None:
        self.relative: dict[Cell, list[np.ndarray]] = {}
        self.absolute: dict[Cell, list[np.ndarray]] = {}
        self.tokens: list[np.ndarray] = []

    def add(self, sensing: Sensing, batch: Batch) -> None:
        self.tokens.append(batch.predicted.sum(1).numpy().astype(np.float64))
        for cell, (relative, absolute) in sensing.per_sequence().items():
            self.relative.setdefault(cell, []).append(relative)
            self.absolute.setdefault(cell, []).append(absolute)

    def read(self, sensing: Sensing, passes: int) -> SensitivityMap:
        total = float(sum(part.sum() for part in self.tokens)) * passes
        channels = {
            name: ChannelSums(sums.relative.cpu() / total, sums.absolute.cpu() / total)
            for name, sums in sensing.channels.items()
        }
        return SensitivityMap(
            {cell: self._estimate(parts, passes) for cell, parts in self.relative.items()},
            {cell: self._estimate(parts, passes) for cell, parts in self.absolute.items()},
            channels,
            dict(sensing.sites),
            {layer: small / of for layer, (small, of) in sensing.near_zero.items()},
            passes,
            cost=1.0 + 2.0 * passes,
        )

    def _estimate(self, parts: list[np.ndarray], passes: int) -> Estimate:
        by_batch = any(len(part) != len(tokens) for part, tokens in zip(parts, self.tokens, strict=True))
        tokens = [part.sum(keepdims=True) if by_batch else part for part in self.tokens]
        sums = [part.sum(keepdims=True) if by_batch else part for part in parts]
        return ratio(np.concatenate(sums) / passes, np.concatenate(tokens), positive=True)
