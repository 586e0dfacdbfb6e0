"""Noise in what operators compute, or in the gradients they make, while a model is trained.

    OperatorNoise(0.05)                                                         every operator, forward
    OperatorNoise(0.05, operators=["linear"], phases="both")
    OperatorNoise(Uniform(0.05), schedule=CosineSchedule(0.05), adaptive=AdaptiveNoise.equalize(report))

It is `noisescope.inject` that is opened for each forward and backward pass and closed after it. A draw depends on the
seed, the place, the optimizer step and the forward pass within it: so a resumed run draws what the straight one does.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from torch import nn

from ..diagnosis.mapping import MOMENTS
from ..errors import CompiledModel, InputError, ModelError, quoted
from ..injection import Injection, Scales, multipliers, refuse_compiled
from ..noise import Noise, RelativeGaussian
from ..operators import expand
from ..sites import Layout
from ..specs import Layer, Selection, check_scale, parse_layers, parse_names, parse_phases
from .adaptive import AdaptiveNoise
from .fused_heads import has_fused_head, without_head
from .ledger import Ledger
from .schedules import ConstantSchedule, Schedule, as_schedule, largest_of

__all__ = ["OperatorNoise"]

_RANKS = 2**32
"""seeds of other ranks are so far apart"""


@dataclass(frozen=True)
class OperatorNoise:
    """Noise at operators, for `NoiseCallback` or `NoisyTraining`.

    Args:
        noise: a noise model, or a number: the scale of `RelativeGaussian`.
        schedule: how large it is as training goes on, in place of the noise's own scale.
        phases: `forward`, `backward` or `both`.
        layers: as `inject` takes them; None: all, or those of `adaptive`.
        operators: names of the catalogue; None: all.
        modules: patterns of module paths.
        operator_scales: multipliers per operator.
        adaptive: a factor for each layer.
        seed: another one, other draws. Ranks of a distributed training draw each on their own.
        blocks: where the blocks are, for a model whose structure is not recognised.
    """

    noise: Noise | float
    _: KW_ONLY
    schedule: Schedule | float | None = None
    phases: str | Iterable[str] = "forward"
    layers: int | str | Iterable[int | str] | None = None
    operators: str | Iterable[str] | None = None
    modules: str | Iterable[str] | None = None
    operator_scales: Mapping[str, float] | None = None
    adaptive: AdaptiveNoise | None = None
    seed: int = 0
    blocks: str | None = None

    kind: ClassVar[str] = "noise"

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed: got {quoted(self.seed)}, expected a whole number")
        if self.adaptive is not None and not isinstance(self.adaptive, AdaptiveNoise):
            raise InputError(f"adaptive: got {type(self.adaptive).__name__}, expected an AdaptiveNoise")
        if (largest := largest_of(self.scheduled)) is not None:
            self.scales(largest)  # which a probability may not bear
        if self.selection.empty:
            raise InputError(
                "layers, operators, modules, phases: got an empty one, expected something to put noise into"
            )
        if self.adaptive is not None and self.adaptive.is_equal:
            self._check_equal(self.adaptive)

    def _check_equal(self, adaptive: AdaptiveNoise) -> None:
        """Raises if contributions that are equal would not be so for this noise."""
        if adaptive.operators is not None and set(self.selection.operators or ()) != set(adaptive.operators):
            raise InputError(
                f"adaptive: contributions are equal for {' '.join(adaptive.operators)}, the noise goes to "
                f"{' '.join(self.selection.operators or ['all operators'])}; make it with the same operators"
            )
        if self.multipliers:
            raise InputError(
                "adaptive: contributions are equal where all operators have one scale; leave out operator_scales, or "
                "use AdaptiveNoise.from_report"
            )
        name = self.model_of_noise.name
        if adaptive.error_type is not None and _like(adaptive.error_type) != _like(name):
            raise InputError(
                f"adaptive: contributions are equal for {adaptive.error_type}, the noise is {name}; diagnose with "
                f"error_type={name}, or use equalize_contributions"
            )

    @property
    def model_of_noise(self) -> Noise:
        """The noise model."""
        if isinstance(self.noise, Noise):
            return self.noise
        return RelativeGaussian(check_scale(self.noise, what="noise"))

    @property
    def scheduled(self) -> Schedule:
        """How large it is, as training goes on."""
        if self.schedule is None:
            return ConstantSchedule(self.model_of_noise.scale)
        return as_schedule(self.schedule)

    @property
    def selection(self) -> Selection:
        """The places that are meant."""
        layers = parse_layers(self.layers)
        if self.adaptive is not None:
            known = self.adaptive.layers
            if other := [layer for layer in layers or () if layer not in known]:
                raise InputError(f"layers: {other[0]} has no factor in adaptive, which has {' '.join(map(str, known))}")
            layers = known if layers is None else layers
        return Selection(
            layers, expand(self.operators), parse_names(self.modules, what="modules"), parse_phases(self.phases)
        )

    @property
    def multipliers(self) -> dict[str, float]:
        """Operator -> multiplier of its scale."""
        return multipliers(self.operator_scales, self.selection)

    def scales(self, base: float) -> Scales:
        """The scale at each place, where the schedule is at `base`."""
        layers: dict[Layer, float] = {} if self.adaptive is None else self.adaptive.scales(base)
        found = Scales(base, self.multipliers, layers)
        found.check(self.model_of_noise)
        return found

    def on(self, model: nn.Module, *, rank: int = 0) -> "InjectingNoise":
        """The noise on one model."""
        return InjectingNoise(self, model, rank)


def _like(error_type: str) -> str:
    """The same for noises that cost the same at every place, but for one factor."""
    return MOMENTS[error_type][0] if error_type in MOMENTS else error_type


class InjectingNoise:
    """An injection that is opened and closed with every step."""

    def __init__(self, asked: OperatorNoise, model: nn.Module, rank: int) -> None:
        self.asked = asked
        noise, layout = asked.model_of_noise, Layout.of(model, blocks=asked.blocks)
        if asked.adaptive is not None:
            asked.adaptive.check(model, layers=len(layout.blocks))
        selection = asked.selection
        if has_fused_head(model):
            selection = replace(selection, layers=without_head(selection.layers, layout))
        self.ledger = Ledger(asked.kind, noise)
        self._injection = Injection(noise, selection, layout=layout, seed=asked.seed + rank * _RANKS, strict=False)
        self._trial: int | None = None

    def check(self, called: nn.Module) -> None:
        """Raises for compiled code, and for copies of the model on threads of their own."""
        try:
            refuse_compiled(called.modules())
        except CompiledModel as why:
            what = str(why).partition(";")[0]
            raise CompiledModel(f"{what}; train without torch_compile, or with NormWeightNoise") from None
        if isinstance(called, nn.DataParallel):
            raise ModelError(
                "DataParallel runs copies of the model on other threads, where noise does not reach; train with one "
                "process a device (torchrun), or on one device (CUDA_VISIBLE_DEVICES=0)"
            )

    @contextmanager
    def noisy(self, step: int, scale: float, *, trial: int) -> Iterator[None]:
        """The model computes with noise of that scale."""
        if trial != self._trial:
            self._injection.restart(trial)
            self._trial = trial
        if scale == 0:  # nothing is opened, so that not even attention is computed otherwise
            yield
            return
        self._injection.rescale(self.asked.scales(scale))
        self._injection.stats = self.ledger.open(step, scale)
        with self._injection:
            yield

    def refuse_silence(self) -> None:
        """Raises if nothing was disturbed so far."""
        self._injection.refuse_silence()
