"""The names of the method documents, each a few lines over the real thing; they return plain dictionaries.

New code is better served by `noisescope.diagnose`, `inject` and `capture`: these are for people who bring scripts.
"""

from .dashboard import MetricsDashboard
from .faults import FaultInjectionTestGenerator
from .integrated import IntegratedDiagnostic
from .levels import (
    capture_layer_output,
    find_critical_threshold,
    operator_level_diagnosis,
    sliding_window_diagnosis,
)
from .outlier_channels import ChannelOutlierDetector
from .planning import assign_precision, generate_mixed_precision_config, plan_hardware_migration
from .plotting import plot_sensitivity_heatmap
from .training import AdaptiveAQN

__all__ = [
    "AdaptiveAQN",
    "ChannelOutlierDetector",
    "FaultInjectionTestGenerator",
    "IntegratedDiagnostic",
    "MetricsDashboard",
    "assign_precision",
    "capture_layer_output",
    "find_critical_threshold",
    "generate_mixed_precision_config",
    "operator_level_diagnosis",
    "plan_hardware_migration",
    "plot_sensitivity_heatmap",
    "sliding_window_diagnosis",
]
