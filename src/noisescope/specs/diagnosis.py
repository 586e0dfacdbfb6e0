"""What can be asked of a diagnosis: which levels, which noise, where, how thoroughly."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from ..errors import InputError, unknown_name
from .selecting import Layer, check_scale, parse_layers, parse_names

__all__ = ["DEFAULT_WINDOW", "LEVELS", "PRESETS", "DiagnosisSpec", "Preset"]

DEFAULT_WINDOW = 3
"""layers of a window, or as many as there are"""
LEVELS = ("operator", "layer", "channel", "full")
SAMPLED = ("checks", "all")


@dataclass(frozen=True)
class Preset:
    """How much data, and how many independent draws of the noise."""

    n_samples: int
    trials: int


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"quick": Preset(50, 1), "standard": Preset(100, 1), "report": Preset(200, 3)}
)


@dataclass(frozen=True)
class DiagnosisSpec:
    """A diagnosis to run. Defaults are those of `noisescope diagnose`.

    `layers` and `operators` restrict what is looked at; None means everything. `sampled="all"` injects into every
    single layer and verifies every critical threshold, where the default takes them from the map and checks a share.
    """

    level: str = "full"
    noise_scale: float = 0.05
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
        if self.level not in LEVELS:
            raise unknown_name("level", self.level, LEVELS)
        if self.sampled not in SAMPLED:
            raise unknown_name("sampled", self.sampled, SAMPLED)
        for name in ("noise_scale", "avalanche_threshold", "outlier_threshold", "target_degradation"):
            if check_scale(getattr(self, name), what=name) == 0:
                raise InputError(f"{name}: got 0, expected a number > 0")
        for name in ("window_size", "step_size", "trials"):
            _check_whole(name, getattr(self, name), least=1)
        _check_whole("seed", self.seed, least=0)
        object.__setattr__(self, "layers", parse_layers(self.layers))
        object.__setattr__(self, "operators", parse_names(self.operators, what="operators"))

    def includes(self, level: str) -> bool:
        """True if that level is asked for, alone or with all others."""
        return self.level in (level, "full")

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a report."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def _check_whole(name: str, given: object, *, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise InputError(f"{name}: got {given!r}, expected a whole number of at least {least}")
