"""Where a model is fragile: the one-pass map and its check; operators, layers, channels; the integrated diagnosis.

The way of the data: gradients are weighed (`sensing`) into the map (`mapping`), which injection checks (`checking`);
points are chosen by level (`by_operator`, `by_layer`, `channels`, `thresholds`), run in stages (`stages`), and become
the sections of a report (`sections`, `advice`).
"""

from .by_layer import identify_avalanche_points
from .channel_report import ChannelReport
from .channels import detect
from .integrated import diagnose
from .mapping import SensitivityMap, map_sensitivity
from .outlier_names import ActivationCapture
from .progress import Progress
from .stages import Diagnosis

__all__ = [
    "ActivationCapture",
    "ChannelReport",
    "Diagnosis",
    "Progress",
    "SensitivityMap",
    "detect",
    "diagnose",
    "identify_avalanche_points",
    "map_sensitivity",
]
