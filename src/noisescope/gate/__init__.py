"""The gate of a pipeline: is this checkpoint as robust as the last one that was found good?

The way of the data: noise on one operator after the other, counted by sequence (`evaluating`), kept as a baseline
(`baseline`); another checkpoint on the same tokens with the same noise, held against it (`checking`) by tests paired by
sequence (`significance`) and the rules of the gate (`judging`); what became of all checkpoints (`history`, `trend`).
"""

from .baseline import Baseline
from .checking import check, take_baseline
from .monitor import RobustnessMonitor
from .result import RobustnessCheck

__all__ = ["Baseline", "RobustnessCheck", "RobustnessMonitor", "check", "take_baseline"]
