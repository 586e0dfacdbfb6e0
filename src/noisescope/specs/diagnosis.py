"""What can be asked of a diagnosis: which levels, which noise, where, how thoroughly."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from ..errors import InputError, unknown_name
from . import known
from .checks import Check, checked, number, one_of, optional, truth, whole
from .selecting import Layer, parse_layers, parse_names

__all__ = ["DEFAULT_WINDOW", "FIELDS", "LEVELS", "OPTIONS", "PRESETS", "SAMPLED", "UNUSED", "DiagnosisSpec", "Preset"]

DEFAULT_WINDOW = 3
"""layers of a window, or as many as there are"""
LEVELS = ("operator", "layer", "channel", "full")
SAMPLED = ("checks", "all")
ENGINES = ("local",)


@dataclass(frozen=True)
class Preset:
    """How much data, and how many independent draws of the noise."""

    n_samples: int
    trials: int


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"quick": Preset(50, 1), "standard": Preset(100, 1), "report": Preset(200, 3)}
)


def _samples(given: Any) -> int:
    if given == 1 and not isinstance(given, bool):
        raise InputError("got 1, but intervals need at least two samples")
    count: int = whole(2)(given)
    return count


def _operators(given: Any) -> tuple[str, ...] | None:
    """Operators and groups of them, as they were named; `noisescope.operators` knows what the groups hold."""
    names = parse_names(given.replace(",", " ").split() if isinstance(given, str) else given, what="operators")
    for name in names or ():
        if name not in known.OPERATORS and name not in known.GROUPS:
            raise unknown_name("operator", name, known.OPERATORS)
    return names


def _engine(given: Any) -> str:
    if given == "ray":
        raise InputError('got "ray", which is not available yet, expected local')
    return str(one_of("engine", ENGINES)(given))


FIELDS: Mapping[str, Check] = MappingProxyType(
    {
        "level": one_of("level", LEVELS),
        "noise_scale": number(above=0),
        "layer_noise_scale": optional(number(above=0)),
        "error_type": one_of("error type", known.ERROR_TYPES),
        "layers": parse_layers,
        "operators": _operators,
        "window_size": whole(1),
        "step_size": whole(1),
        "avalanche_threshold": number(above=0),
        "outlier_threshold": number(least=1),
        "target_degradation": number(above=0),
        "trials": whole(1),
        "sampled": one_of("sampled", SAMPLED),
        "curvature": truth,
        "seed": whole(0),
    }
)
"""field of a `DiagnosisSpec` -> its check; flags and configuration files are held to the same"""

OPTIONS: Mapping[str, Check] = MappingProxyType(
    {
        "n_samples": _samples,
        "calibration_samples": optional(whole(2)),
        "batch_size": whole(1),
        "max_length": optional(whole(2)),
        "max_new_tokens": whole(1),
        "engine": _engine,
    }
)
"""what a run is given beside the question: how much of the data, and how it is worked off -> its check"""


_LOOKS_AT_CHANNELS = ("outlier_threshold", "calibration_data", "calibration_samples")
_LOOKS_AT_LAYERS = ("window_size", "step_size", "layer_noise_scale", "avalanche_threshold")
_ADDS_NOISE = ("noise_scale", "error_type", "operators", "trials", "sampled", "curvature", "max_new_tokens")

UNUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "operator": (*_LOOKS_AT_LAYERS, *_LOOKS_AT_CHANNELS),
        "layer": _LOOKS_AT_CHANNELS,
        "channel": (*_ADDS_NOISE, *_LOOKS_AT_LAYERS),
        "full": (),
    }
)
"""level -> fields and options that it does not look at"""


@dataclass(frozen=True)
class DiagnosisSpec:
    """A diagnosis to run. Defaults are those of `noisescope diagnose`.

    `layers` and `operators` restrict what is looked at; None means everything. `sampled="all"` injects into every
    single layer and verifies every critical threshold, where the default takes them from the map and checks a share.
    `layer_noise_scale` is that of windows, groups and single layers; None means the same as everywhere.
    """

    level: str = "full"
    noise_scale: float = 0.05
    layer_noise_scale: float | None = None
    error_type: str = "relative_gaussian"
    layers: tuple[Layer, ...] | None = None
    operators: tuple[str, ...] | None = None
    window_size: int = DEFAULT_WINDOW
    step_size: int = 1
    avalanche_threshold: float = 0.15
    outlier_threshold: float = 10.0
    target_degradation: float = 0.10
    trials: int = 1
    sampled: str = "checks"
    curvature: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in checked(vars(self), FIELDS).items():
            object.__setattr__(self, name, value)
        if self.error_type in known.SHARES:
            self._check_shares()

    def _check_shares(self) -> None:
        scales = {"noise_scale": self.noise_scale, "layer_noise_scale": self.layer_noise_scale}
        if large := {name: scale for name, scale in scales.items() if scale is not None and scale > 1}:
            why = f"expected at most 1, because {self.error_type} strikes that share of the values"
            raise InputError(*(f"{name}: got {scale:g}, {why}" for name, scale in large.items()))

    @property
    def scale_of_layers(self) -> float:
        """The noise scale of windows, groups and single layers."""
        return self.noise_scale if self.layer_noise_scale is None else self.layer_noise_scale

    def includes(self, level: str) -> bool:
        """True if that level is asked for, alone or with all others."""
        return self.level in (level, "full")

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a report."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
