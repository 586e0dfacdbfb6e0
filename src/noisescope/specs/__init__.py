"""What can be asked, checked and canonical: a selection of sites, a diagnosis. No torch here."""

from . import known
from .checks import Check, checked, named
from .diagnosis import DEFAULT_WINDOW, FIELDS, LEVELS, OPTIONS, PRESETS, SAMPLED, UNUSED, DiagnosisSpec, Preset
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
    "FIELDS",
    "LEVELS",
    "OPTIONS",
    "OUTSIDE",
    "PRESETS",
    "SAMPLED",
    "UNUSED",
    "Check",
    "DiagnosisSpec",
    "Layer",
    "Phase",
    "Preset",
    "Selection",
    "check_scale",
    "check_scales",
    "checked",
    "known",
    "named",
    "parse_layers",
    "parse_names",
    "parse_phases",
]
