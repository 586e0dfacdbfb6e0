"""The names of the method documents, each a few lines over the real thing; they return plain dictionaries.

New code is better served by `noisescope.diagnose`, `inject` and `capture`: these are for people who bring scripts.
"""

from .dashboard import MetricsDashboard
from .integrated import IntegratedDiagnostic
from .levels import (
    capture_layer_output,
    find_critical_threshold,
    operator_level_diagnosis,
    sliding_window_diagnosis,
)
from .outlier_channels import ChannelOutlierDetector
from .plotting import plot_sensitivity_heatmap

__all__ = [
    "ChannelOutlierDetector",
    "IntegratedDiagnostic",
    "MetricsDashboard",
    "capture_layer_output",
    "find_critical_threshold",
    "operator_level_diagnosis",
    "plot_sensitivity_heatmap",
    "sliding_window_diagnosis",
]
