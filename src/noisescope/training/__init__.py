"""Training with noise: which noise, how large in which layer and when, and never anywhere but in the steps.

The way of a step: a schedule says how large (`schedules`), a report which layer gets how much of it (`adaptive`), a
kind of noise puts it on the model for one forward and backward pass (`operator_noise`, `norm_noise`), a ledger books
what was really applied; `running` does this in a loop of your own, `callback` in a Trainer.
"""

from .adaptive import AdaptiveNoise
from .callback import NoiseCallback
from .contributions import equalize_contributions, measure_contributions
from .ledger import Applied
from .norm_noise import NormWeightNoise
from .operator_noise import OperatorNoise
from .running import NoisyTraining
from .schedules import ConstantSchedule, CosineSchedule, ExponentialStages, LinearSchedule, Schedule
from .target import TrainingNoise

__all__ = [
    "AdaptiveNoise",
    "Applied",
    "ConstantSchedule",
    "CosineSchedule",
    "ExponentialStages",
    "LinearSchedule",
    "NoiseCallback",
    "NoisyTraining",
    "NormWeightNoise",
    "OperatorNoise",
    "Schedule",
    "TrainingNoise",
    "equalize_contributions",
    "measure_contributions",
]
