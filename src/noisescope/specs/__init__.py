"""What can be asked, checked and canonical: a selection of sites, a diagnosis. No torch here."""

from .diagnosis import DEFAULT_WINDOW, LEVELS, PRESETS, DiagnosisSpec, Preset
from .selecting import (
    OUTSIDE,
    Layer,
    Phase,
    Selection,
    check_scale,
    check_scales,
    parse_layers,
    parse_names,
    parse_phases,
)

__all__ = [
    "DEFAULT_WINDOW",
    "LEVELS",
    "OUTSIDE",
    "PRESETS",
    "DiagnosisSpec",
    "Layer",
    "Phase",
    "Preset",
    "Selection",
    "check_scale",
    "check_scales",
    "parse_layers",
    "parse_names",
    "parse_phases",
]
