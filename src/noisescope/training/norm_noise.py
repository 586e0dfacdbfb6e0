"""Noise in the weights of norms while a model is trained: adaptive quantisation noise (AQN).

    NormWeightNoise(ExponentialStages(1e-2, 1e-4, stages=10))

N(0, sigma^2) is added to the weight of every RMSNorm and LayerNorm for the forward and backward pass of a step, and
the clean weights are put back, bit for bit, before the optimizer moves them. So noise never adds up, and whatever is
evaluated or saved between two steps is clean. All forward passes of one optimizer step see the same weights, and so do
all processes of a distributed training.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import DoseVanished, ExitOrder, InputError, quoted
from ..injection import InjectionStats
from ..keys import Key
from ..noise import AbsoluteGaussian
from ..sites import Layout
from ..specs import Layer, Selection, parse_layers, parse_names
from .adaptive import AdaptiveNoise
from .ledger import Ledger
from .norms import NormWeight, find_norm_weights
from .schedules import ExponentialStages, Schedule, as_schedule

__all__ = ["NormWeightNoise"]


@dataclass(frozen=True)
class NormWeightNoise:
    """Noise in norm weights, for `NoiseCallback` or `NoisyTraining`.

    A state dict taken inside a step has the noise in it: that is how it reaches rollouts which are sent the weights.

    Args:
        schedule: sigma as training goes on, or a number for a constant one.
        layers: as `inject` takes them; None: all, or those of `adaptive`.
        modules: patterns of module paths; None: all norms but those of experts and routers.
        adaptive: a factor for each layer, by degradation.
        seed: another one, other draws.
        blocks: where the blocks are, for a model whose structure is not recognised.
    """

    schedule: Schedule | float = field(default_factory=ExponentialStages)
    _: KW_ONLY
    layers: int | str | Iterable[int | str] | None = None
    modules: str | Iterable[str] | None = None
    adaptive: AdaptiveNoise | None = None
    seed: int = 0
    blocks: str | None = None

    kind: ClassVar[str] = "norm_noise"

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed: got {quoted(self.seed)}, expected a whole number")
        if self.adaptive is not None and not isinstance(self.adaptive, AdaptiveNoise):
            raise InputError(f"adaptive: got {type(self.adaptive).__name__}, expected an AdaptiveNoise")
        if self.adaptive is not None and self.adaptive.is_equal:
            raise InputError(
                "adaptive: contributions are made equal for noise in what operators compute, not in weights; use "
                "AdaptiveNoise.from_report, or OperatorNoise"
            )
        if self.selection.empty:
            raise InputError("layers, modules: got an empty one, expected norms to put noise into")
        _ = self.scheduled

    @property
    def scheduled(self) -> Schedule:
        """Sigma, as training goes on."""
        return as_schedule(self.schedule)

    @property
    def selection(self) -> Selection:
        """The norms that are meant."""
        layers = parse_layers(self.layers)
        if self.adaptive is not None and layers is None:
            layers = self.adaptive.layers
        return Selection(layers, modules=parse_names(self.modules, what="modules"))

    def on(self, model: nn.Module, *, rank: int = 0) -> "NoisyNorms":
        """The noise on one model, the same in every rank: there is one set of weights."""
        return NoisyNorms(self, model)


class NoisyNorms:
    """Norm weights that are noisy within a step."""

    def __init__(self, asked: NormWeightNoise, model: nn.Module) -> None:
        self.asked = asked
        layout = Layout.of(model, blocks=asked.blocks)
        if asked.adaptive is not None:
            asked.adaptive.check(model, layers=len(layout.blocks))
        self.norms = find_norm_weights(layout, asked.selection)
        self._noise = AbsoluteGaussian(0.0)
        self.ledger = Ledger(asked.kind, self._noise)

    def check(self, called: nn.Module) -> None:
        """Nothing to refuse: compiled code reads its weights at every call."""

    @contextmanager
    def noisy(self, step: int, scale: float, *, trial: int) -> Iterator[None]:
        """The weights have noise of that scale."""
        if scale == 0:
            yield
            return
        stats = self.ledger.open(step, scale)
        clean = [norm.weight.detach().clone() for norm in self.norms]
        try:
            for norm, before in zip(self.norms, clean, strict=True):
                self._disturb_(norm, before, scale * self._factor(norm.layer), trial, stats)
            left = [norm.weight.detach().clone() for norm in self.norms]
            yield
            self._refuse_moved(left)
        finally:
            try:
                self._put_back(clean)
            except BaseException:  # Ctrl-C is heard between any two lines, also here
                self._put_back(clean)
                raise

    def _put_back(self, clean: list[Tensor]) -> None:
        torch._foreach_copy_([norm.weight.detach() for norm in self.norms], clean)

    def _refuse_moved(self, left: list[Tensor]) -> None:
        """Raises if a weight is not what was left in it: putting the clean one back would undo in silence what is new.

        Values are compared, as whoever writes to `weight.data` leaves no other trace. What is no number differs from
        itself.
        """
        moved = [(norm.weight != noisy).any() for norm, noisy in zip(self.norms, left, strict=True)]
        for norm, has_moved in zip(self.norms, moved, strict=True):  # asked for together: a device is waited for once
            if has_moved and not norm.weight.isnan().any():
                raise ExitOrder(
                    f"{norm.path}: its weight was changed inside the step, where noise is in it; the optimizer's step "
                    "goes behind the block, so an optimizer that runs in the backward pass needs OperatorNoise"
                )

    def _disturb_(self, norm: NormWeight, before: Tensor, scale: float, trial: int, stats: InjectionStats) -> None:
        if scale == 0:
            return
        with torch.no_grad():
            self._noise.disturb_(norm.weight, scale, Key(self.asked.seed, norm.site.name, trial))
        stats.book(norm.site, before.numel(), scale, before, norm.weight.detach())

    def _factor(self, layer: Layer | None) -> float:
        factors = self.asked.adaptive.factors if self.asked.adaptive is not None else {}
        return 1.0 if layer is None else factors.get(layer, 1.0)

    def refuse_silence(self) -> None:
        """Raises if rounding has swallowed all of it."""
        applied = self.ledger.lines[-1]
        if not applied.elements:
            raise DoseVanished("norm weights: every factor in adaptive is 0, so that none of them gets noise")
        if not applied.changed:
            dtype = str(self.norms[0].weight.dtype).removeprefix("torch.")
            raise DoseVanished(
                f"norm weights: sigma {applied.scale:g} changed none of {applied.elements} weights in {dtype}; it is "
                "below their rounding: use a larger sigma or keep norms in float32"
            )
