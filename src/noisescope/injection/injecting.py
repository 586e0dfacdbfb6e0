"""`inject`: known noise at known places of a model, for as long as the `with` block lasts.

    with noisescope.inject(model, RelativeGaussian(0.05), layers=[9, 10, 11], operators=["softmax"]) as run:
        logits = model(**batch).logits
    print(run.stats)

Refuses to do nothing in silence: a selection that touches no value, a compiled model and a dose that rounding swallows
are errors, raised when the block ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from types import TracebackType

import torch
from torch import Tensor, nn

from ..errors import DoseVanished, ExitOrder, InputError, NothingMatched, quoted
from ..keys import Key
from ..noise import Noise
from ..operators import expand
from ..sites import Layout, Selector, Site
from ..specs import Layer, Phase, Selection, check_scale, check_scales, parse_layers, parse_names, parse_phases
from .gradients import add_unseen
from .statistics import InjectionStats, sample
from .watching import Watch, open_observers

__all__ = ["Injection", "Scales", "inject", "is_injecting", "multipliers"]

BY_HAND = frozenset({"silu", "gelu", "layer_norm", "rms_norm"})
"""operators that a model may write as a module of several functions"""


@dataclass(frozen=True)
class Scales:
    """The scale at each place: a layer's own scale, else the noise's, times the operator's multiplier."""

    base: float
    operators: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[Layer, float] = field(default_factory=dict)

    def at(self, layer: Layer | None, operator: str) -> float:
        """The scale at one place."""
        own = self.base if layer is None else self.layers.get(layer, self.base)
        return own * self.operators.get(operator, 1.0)

    def check(self, noise: Noise) -> None:
        """Raises if the noise cannot have the largest of the scales: a probability ends at 1."""
        largest = max(self.base, *self.layers.values(), 0.0) * max(1.0, *self.operators.values(), 0.0)
        if is_dataclass(noise) and not isinstance(noise, type):
            replace(noise, scale=largest)


def multipliers(operator_scales: Mapping[str, float] | None, selection: Selection) -> dict[str, float]:
    """Operator of the catalogue -> multiplier of its scale; raises if it is for operators that get no noise."""
    found = dict[str, float]()
    for given, multiplier in check_scales(operator_scales, what="operator_scales").items():
        names = expand([str(given)]) or ()
        if selection.operators is not None and not set(names) & set(selection.operators):
            raise InputError(
                f"operator_scales: {quoted(given)} is not one of the operators that get noise "
                f"({' '.join(selection.operators) or 'none'}); add it to operators"
            )
        found |= dict.fromkeys(names, multiplier)
    return found


def is_injecting() -> bool:
    """True if noise is put into what this thread computes now."""
    return any(isinstance(observer, Injection) for observer in open_observers())


class Injection:
    """A running injection, which is the observer that disturbs the values. `stats` tells what it did."""

    def __init__(
        self,
        noise: Noise,
        selection: Selection,
        *,
        model: nn.Module | None = None,
        blocks: str | None = None,
        scales: Scales | None = None,
        seed: int = 0,
        trial: int = 0,
        strict: bool = True,
        layout: Layout | None = None,
        in_steps: bool = False,
        first_step: int = 0,
    ) -> None:
        self.noise = noise
        self.selection = selection
        self.scales = scales or Scales(noise.scale)
        self.seed, self.trial = seed, trial
        self.strict = strict
        self.stats = InjectionStats(noise)
        if layout is None and model is not None:
            layout = Layout.of(model, blocks=blocks)
        self._first_step = first_step
        self._left_alone = False
        self._meant = Selector(selection, layout)
        if layout is not None:
            for layer in self.scales.layers:
                layout.require(layer, what="layer_scales")
        self._watch = Watch(self, layout=layout, in_steps=in_steps, first_step=first_step)

    def __enter__(self) -> "Injection":
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, trace)
        if kind is None and self.strict:
            self.refuse_silence()

    def restart(self, trial: int) -> None:
        """Draws of another trial from now on, whose forward passes count from the first step again."""
        self.trial = trial
        self._watch.scope.begin(self._first_step)

    def rescale(self, scales: Scales) -> None:
        """Other scales from now on."""
        if scales != self.scales:
            self.scales = scales
            self._watch.ask_again()

    @property
    def step(self) -> int:
        """The number of the model's current or last forward pass, from the first step on; one less before it."""
        return self._watch.scope.step

    @property
    def layer(self) -> Layer | None:
        """The layer that is running now on this thread, if any: none between two blocks."""
        top = self._watch.scope.top
        if top is None or (top.entry.is_stack and top.layer is None):
            return None
        return self._watch.scope.layer_of(top, "")

    @property
    def steps_difference(self) -> float:
        """Largest abs difference between attention in steps and the fused kernel; 0 where none was opened."""
        return max((float(found) for found in self._watch.steps_difference.values()), default=0.0)

    # --- the observer -------------------------------------------------------------------------------------------

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True where the selection points.

        At scale 0 the gradient of a hand-written operator is not looked at: that would gather the gradients its input
        gets from inside it before they meet those from outside, another order of addition and so other last bits.
        """
        if phase not in self.selection.phases or not self._meant(layer, operator, module):
            return False
        if phase == "backward" and operator in BY_HAND and self.scales.at(layer, operator) == 0:
            self._left_alone = True
            return False
        return True

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value, disturbed once and booked on its first site; its gradient is that of the undisturbed one."""
        site = sites[0]
        if not self._disturbs(site, value):
            return value

        def disturb_(out: Tensor) -> None:
            self._disturb_(site, out, self._key(site, step))

        if value.requires_grad:
            return add_unseen(value, disturb_)
        out = value if owned and value.is_contiguous() else value.clone()
        disturb_(out)
        return out

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The disturbed gradient."""
        if not self._disturbs(site, grad):
            return grad
        out = grad.clone()
        self._disturb_(site, out, self._key(site, step).part(str(part)))
        return out

    def too_late(self) -> None:
        """Refuses a backward pass in which the disturbed forward pass would be run again undisturbed."""
        if any(row.phase == "forward" and row.scale > 0 for row in self.stats.rows):
            raise ExitOrder(
                "gradient checkpointing would recompute the forward pass without its noise, because the injection has "
                "ended; call backward inside the `with` block"
            )

    def _disturbs(self, site: Site, value: Tensor) -> bool:
        scale = self.scales.at(site.layer, site.operator)
        if scale > 0 and value.is_floating_point() and value.numel():
            return True
        if not self._again(site):
            self.stats.book(site, 0, scale, None, None)
        return False

    def _again(self, site: Site) -> bool:
        """True if this value is recomputed, and was booked the first time."""
        return site.phase == "forward" and self._watch.scope.recomputing

    def _disturb_(self, site: Site, value: Tensor, key: Key) -> None:
        scale = self.scales.at(site.layer, site.operator)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            before = None if self._again(site) else sample(value, everything=self.noise.sparse)
            full = self.noise.disturb_(value, scale, key)
            if before is not None:
                after = sample(value, everything=self.noise.sparse)
                yardstick = None if full is None else sample(full, everything=self.noise.sparse)
                self.stats.book(site, value.numel(), scale, before, after, yardstick)

    def _key(self, site: Site, step: int) -> Key:
        return Key(self.seed, site.name, self.trial, step)

    # --- never a silent nothing ---------------------------------------------------------------------------------

    def refuse_silence(self) -> None:
        """Raises if nothing was disturbed so far, although something was asked for."""
        if self.selection.empty:
            return
        if self.step < self._first_step:
            raise NothingMatched(
                f"{self.selection.describe()}: the model did not run inside the `with` block; was it another object, "
                "such as a copy or a wrapper?"
            )
        self._watch.refuse_hidden(self.selection.describe(), self.selection.operators, self.stats.by_operator)
        if not self.stats.calls():
            if self._left_alone:
                return
            raise self._why_nothing()
        total = self.stats.total
        if not total.changed and any(row.scale > 0 for row in self.stats.rows):
            raise DoseVanished(
                f"{self.noise.name} at scale {self.scales.base:g} changed none of {total.elements} values looked at; "
                "it is below the rounding of their dtype, or they were all zero: use a larger scale or a wider dtype"
            )

    def _why_nothing(self) -> NothingMatched:
        asked = self.selection.describe()
        if self.selection.phases == ("backward",):
            return NothingMatched(
                f"{asked}: no gradient was disturbed; the selection matched nothing that needs a gradient, or no "
                "backward pass ran inside the block"
            )
        return self._meant.nothing(asked, self.step + 1 - self._first_step)


def inject(
    model: nn.Module,
    noise: Noise,
    *,
    layers: int | str | Iterable[int | str] | None = None,
    operators: str | Iterable[str] | None = None,
    modules: str | Iterable[str] | None = None,
    phases: str | Iterable[str] = "forward",
    operator_scales: Mapping[str, float] | None = None,
    layer_scales: Mapping[Layer, float] | None = None,
    seed: int = 0,
    trial: int = 0,
    blocks: str | None = None,
) -> Injection:
    """A context manager that puts noise into `model` at the selected places, and always takes it out again.

    Use it for any experiment with a model of your own; use `noisy_ops` only for code that cannot be edited.

    Args:
        model: any module with a stack of blocks. Nothing is attached to it.
        noise: a noise model with its scale, such as `RelativeGaussian(0.05)`. Scale 0 is the bitwise identity.
        layers: indices, ranges ("9-11"), `embed`, `final_norm`, `head`, or a collection of these. None means all.
        operators: names of the catalogue, or the group `norm`. None means all, an empty list none.
        modules: patterns of module paths, globs or `re:` expressions; a module means all that is inside it.
        phases: `forward`, `backward` or `both`. Backward noise goes on the gradients that the operator makes.
        operator_scales: multipliers per operator, 1 where not given.
        layer_scales: a layer's own scale, in place of the noise's.
        seed: with the site, the trial and the step, all that a draw depends on.
        trial: an independent repetition under the same seed.
        blocks: where the blocks are, for a model whose structure is not recognised.

    Returns:
        The injection; `stats`, `step` and `steps_difference` may be read inside and after the block.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    for name, number in (("seed", seed), ("trial", trial)):
        if not isinstance(number, int):
            raise InputError(f"{name}: got {number!r}, expected a whole number")
    if not isinstance(noise, Noise):
        raise InputError(f"noise: got {noise!r}, expected a noise model such as RelativeGaussian(0.05)")
    selection = Selection(
        layers=parse_layers(layers),
        operators=expand(operators),
        modules=parse_names(modules, what="modules"),
        phases=parse_phases(phases),
    )
    own = check_scales(layer_scales, what="layer_scales")
    if selection.layers is not None and (idle := [layer for layer in own if layer not in selection.layers]):
        raise InputError(f"layer_scales: {quoted(idle[0])} is not one of the layers that get noise; add it to layers")
    scales = Scales(check_scale(noise.scale), multipliers(operator_scales, selection), own)
    scales.check(noise)
    return Injection(noise, selection, model=model, blocks=blocks, scales=scales, seed=seed, trial=trial)
