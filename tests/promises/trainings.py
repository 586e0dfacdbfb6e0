"""Trainings of the Llama fixture in a Trainer, small enough for tests: rows of real text, and what became of them."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from digests import bits
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import noisescope as ns
import trained

LENGTH = 16

NOISES: dict[str, Callable[[], ns.OperatorNoise | ns.NormWeightNoise]] = {
    "operators": lambda: ns.OperatorNoise(0.05, layers="3-4", operators="linear", phases="both"),
    "norm weights": lambda: ns.NormWeightNoise(0.05),
}


@cache
def rows(count: int = 24) -> list[dict[str, Tensor]]:
    """Rows to train on."""
    ids = trained.tokenizer("llama")("".join(topics[name] for name in sorted(topics)[:8]), verbose=False)["input_ids"]
    parts = torch.tensor(ids[: count * LENGTH]).view(count, LENGTH)
    return [{"input_ids": part, "labels": part} for part in parts]


def trainer(
    directory: Path, callbacks: Iterable[TrainerCallback] = (), *, kind: type[Trainer] = Trainer, **options: Any
) -> Trainer:
    """A Trainer of a freshly loaded fixture: four steps of two batches of two rows, unless told otherwise."""
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
    } | options
    model, _ = trained.fixture("llama")
    arguments = TrainingArguments(str(directory), **settings)
    return kind(model.train(), arguments, train_dataset=rows(), eval_dataset=rows()[:4], callbacks=list(callbacks))


def weights(model: nn.Module) -> dict[str, str]:
    """Fingerprints of all weights."""
    return {name: bits(value) for name, value in model.state_dict().items()}


def losses(run: Trainer) -> list[float]:
    """What was logged of the loss, step by step."""
    return [row["loss"] for row in run.state.log_history if "loss" in row]
