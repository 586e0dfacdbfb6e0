"""What one thread asks for, as one frozen value; and how it reads to the engine.

A setting that cannot be meant is refused when the value is made, before anything changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..errors import InputError
from ..injection.injecting import Scales
from ..noise import Noise, make_noise
from ..operators import OPERATORS, expand
from ..specs import Layer, Phase, Selection, check_scales

__all__ = ["Settings"]

CORE = tuple(name for name, row in OPERATORS.items() if row.core)


@dataclass(frozen=True)
class Settings:
    """The settings of the functional interface, with their documented defaults."""

    error_scale: float = 1e-5
    error_type: str = "relative_gaussian"
    all_ops_mode: bool = False
    seed: int = 0
    forward: bool = True
    backward: bool = True
    layers: tuple[Layer, ...] | None = None
    operators: tuple[str, ...] | None = None
    """names as they were given, groups not expanded"""
    operator_scales: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    layer_scales: Mapping[Layer, float] = field(default_factory=lambda: MappingProxyType({}))
    phase: str | None = None
    """the caller's own word for what the program is doing"""

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed: got {self.seed!r}, expected an integer")
        object.__setattr__(self, "error_scale", self.noise.scale)
        expand_names(self.operators or ())
        check_scales(self.operator_scales, what="operator_noise_scales")
        check_scales(self.layer_scales, what="per_layer_scales")
        expand_names(self.operator_scales)

    @property
    def noise(self) -> Noise:
        """The noise model."""
        return make_noise(self.error_type, self.error_scale)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that get noise."""
        wanted: tuple[tuple[Phase, bool], ...] = (("forward", self.forward), ("backward", self.backward))
        return tuple(name for name, on in wanted if on)

    @property
    def selection(self) -> Selection:
        """The sites that are meant: a selection of operators wins over `all_ops_mode`."""
        chosen = expand_names(self.operators) if self.operators is not None else None if self.all_ops_mode else CORE
        return Selection(self.layers, chosen, phases=self.phases)

    @property
    def scales(self) -> Scales:
        """The scale at each site."""
        multipliers = {
            name: float(multiplier)
            for given, multiplier in self.operator_scales.items()
            for name in expand_names([given])
        }
        return Scales(self.noise.scale, multipliers, {layer: float(own) for layer, own in self.layer_scales.items()})

    def __str__(self) -> str:
        words = [f"{self.error_type} at scale {self.error_scale:g}", self.selection.describe()]
        words.append("phases " + (" ".join(self.phases) or "none"))
        words += [f"operator scales {dict(self.operator_scales)}"] if self.operator_scales else []
        words += [f"layer scales {dict(self.layer_scales)}"] if self.layer_scales else []
        return ", ".join([*words, f"seed {self.seed}"])


def expand_names(names: Iterable[str]) -> tuple[str, ...]:
    """Operators of the catalogue; `layer_norm` is the group of norms here, as it was where the names come from."""
    return expand("norm" if name == "layer_norm" else name for name in names) or ()
