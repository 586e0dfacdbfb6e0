"""Trainings of the Llama fixture for the promises: parts that are accumulated, and what became of the weights."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from digests import bits
from torch import nn
from transformers import Trainer, TrainerCallback

import noisescope as ns
import short_trainings
from short_trainings import llama, logged, rows

__all__ = ["NOISES", "losses", "rows", "trainer", "weights"]

NOISES: dict[str, Callable[[], ns.OperatorNoise | ns.NormWeightNoise]] = {
    "operators": lambda: ns.OperatorNoise(0.05, layers="3-4", operators="linear", phases="both"),
    "norm weights": lambda: ns.NormWeightNoise(0.05),
}


def trainer(directory: Path, callbacks: Iterable[TrainerCallback] = (), **options: Any) -> Trainer:
    """Four steps of two batches of two rows, unless told otherwise."""
    settings = {"max_steps": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "seed": 3}
    return short_trainings.trainer(directory, *callbacks, model=llama().train(), **{**settings, **options})


def weights(model: nn.Module) -> dict[str, str]:
    """Fingerprints of all weights."""
    return {name: bits(value) for name, value in model.state_dict().items()}


def losses(run: Trainer) -> list[float]:
    """What was logged of the loss, step by step."""
    return logged(run, "loss")
