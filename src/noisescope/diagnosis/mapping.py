"""The sensitivity map: every operator of every layer, and every channel, from one forward and backward pass.

For independent noise of relative scale s at a site with value y, to second order in s,

    KL = 1/2 s^2 E[ sum (y g)^2 ] / predicted tokens,

g being the gradient of the log-likelihood of labels sampled from the model's own output, summed over positions: the
Fisher information of the output, carried back to the site. Cells add up. Where the second order ends (a large s) the
map is wrong; `checking` finds out where, by injecting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..capturing import non_finite
from ..capturing.sequences import grouped_modules
from ..errors import InputError, NothingMatched
from ..injection import Watch
from ..keys import Key
from ..measure.batches import Batch
from ..measure.intervals import Estimate, ratio
from ..measure.labels import Tokens, as_batches, sample_labels
from ..measure.scoring import first_bad_row
from ..noise import Noise
from ..resuming import Recording, Shelf
from ..sites import Layout, Selector, Site
from ..specs import Layer, Selection
from .sensing import Cell, ChannelSums, Sensing

__all__ = ["MOMENTS", "SensitivityMap", "map_sensitivity"]

STORED_BYTES = 2**30
"""what block inputs may take in memory while the map is made block by block; more is put on disk"""

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
    data: Tokens,
    *,
    selection: Selection | None = None,
    passes: int = 1,
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    by_block: bool = False,
    recordings: Sequence[Recording] | None = None,
    progress: Callable[[], None] | None = None,
) -> SensitivityMap:
    """The map of a model over data, with standard errors over sequences.

    Each batch takes one forward and `passes` backward passes, each with labels of its own. No parameter's gradient is
    computed, and no flag of the model is changed. For a big model `by_block` goes back block by block, from stored
    inputs: one forward pass more, in the memory of one block's graph. Who has `recordings` of a clean run over the same
    data, one a batch, gets that for nothing.
    """
    layout = layout or Layout.of(model, blocks=blocks)
    selection = selection or Selection()
    sensing = Sensing(Selector(selection, layout), grouped_modules(layout))
    found = _Gathered()
    for number, batch in enumerate(as_batches(data)):
        weighing = _Weighing(
            model, batch, sensing, layout, [Key(seed, f"labels#{draw}", step=number) for draw in range(passes)]
        )
        if recordings is not None:
            weighing.by_block(recordings[number])
        elif by_block:
            weighing.by_block(weighing.record())
        else:
            weighing.at_once()
        found.add(sensing, batch)
        if progress is not None:
            progress()
    if not found.relative:
        raise NothingMatched(f"{selection.describe()}: nothing to map; see `noisescope sites`")
    return found.read(sensing, passes, cost=1.0 + (by_block and recordings is None) + 2.0 * passes)


@dataclass
class _Weighing:
    """The passes of one batch; the sums are left in `sensing`."""

    model: nn.Module
    batch: Batch
    sensing: Sensing
    layout: Layout
    draws: list[Key]

    def at_once(self) -> None:
        """One forward pass, and a backward pass through all of it for each draw of labels."""
        self.sensing.start(*self.batch.input_ids.shape)
        try:
            logits = self._forward()
            self._back(logits, self._scores(logits), self.sensing.leaves)
        finally:
            self.sensing.forget()

    def record(self) -> Recording:
        """A forward pass without a graph, of which the blocks' outputs are kept."""
        recording = Recording(self.layout, Shelf(STORED_BYTES))
        with torch.no_grad(), recording.record():
            self._run()
        return recording

    def by_block(self, recording: Recording) -> None:
        """The graph of one block at a time, from the last to the first."""
        self.sensing.start(*self.batch.input_ids.shape)
        try:
            with recording.only(len(self.layout.blocks)) as tail:
                logits = self._forward()
            upstream = self._back(logits, self._scores(logits), _known(tail.hidden))
            del logits
            for layer in reversed(range(len(self.layout.blocks))):
                upstream = self._back_through(recording, layer, upstream)
        finally:
            self.sensing.forget()

    def _back_through(self, recording: Recording, layer: int, upstream: list[Tensor]) -> list[Tensor]:
        self.sensing.forget()
        while True:
            with recording.only(layer) as segment:
                self._watched()
            if not self.sensing.copy_changed():
                break
        assert segment.output is not None
        return self._back(segment.output, upstream, _known(segment.hidden) or self.sensing.leaves)

    def _forward(self) -> Tensor:
        """The logits, with their graph."""
        while True:
            logits = self._watched()
            if not self.sensing.copy_changed():
                return logits

    def _watched(self) -> Tensor:
        self.sensing.forget()
        with torch.inference_mode(False), torch.enable_grad():
            return self._run()

    def _run(self) -> Tensor:
        device = next(self.model.parameters()).device
        with Watch(self.sensing, layout=self.layout, in_steps=True):
            logits: Tensor = self.model(**self.batch.inputs(device)).logits
        return logits

    def _scores(self, logits: Tensor) -> list[Tensor]:
        if first_bad_row(logits, self.batch) is not None:
            device = next(self.model.parameters()).device
            raise non_finite("the model", self.model, self.batch.inputs(device), layout=self.layout)
        return [score_of_sampled(logits.detach(), self.batch, key) for key in self.draws]

    @staticmethod
    def _back(value: Tensor, upstream: Sequence[Tensor], ends: Sequence[Tensor]) -> list[Tensor]:
        """The gradient at the first of the ends for each draw; values on the way are weighed as it passes."""
        found = []
        for draw, grad in enumerate(upstream):
            more = draw < len(upstream) - 1
            found.append(torch.autograd.grad(value, ends, grad, retain_graph=more, allow_unused=True)[0])
        return found


def _known(hidden: Tensor | None) -> list[Tensor]:
    return [] if hidden is None else [hidden]


def score_of_sampled(logits: Tensor, batch: Batch, key: Key) -> Tensor:
    """The gradient, by the logits, of the log-likelihood of labels drawn from them: onehot - p where it counts."""
    score = torch.zeros_like(logits)
    for row, counted in enumerate(batch.predicted.to(logits.device)):  # not all at once: a vocabulary is large
        given = logits[row, :-1][counted].float()
        labels = sample_labels(given, key.part(str(row)))
        one = torch.ones_like(given[:, :1])
        score[row, :-1][counted] = given.softmax(-1).neg_().scatter_add_(1, labels.unsqueeze(1), one).to(score.dtype)
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

    def read(self, sensing: Sensing, passes: int, *, cost: float) -> SensitivityMap:
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
            cost,
        )

    def _estimate(self, parts: list[np.ndarray], passes: int) -> Estimate:
        by_batch = any(len(part) != len(tokens) for part, tokens in zip(parts, self.tokens, strict=True))
        tokens = [part.sum(keepdims=True) if by_batch else part for part in self.tokens]
        sums = [part.sum(keepdims=True) if by_batch else part for part in parts]
        return ratio(np.concatenate(sums) / passes, np.concatenate(tokens), positive=True)
