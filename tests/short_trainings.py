"""Trainings of a few steps on the trained llama, and what is compared of them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import noisescope as ns
import trained
from noisescope.report import Report

COUNT, LENGTH = 16, 24
QUIET = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
SHORT = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-3}
FEW = {"layers": "0-1", "operators": ["linear"]}
"""where noise costs little time"""


@cache
def texts() -> list[str]:
    """A little of what the fixtures were trained on."""
    whole = " ".join(topics[name] for name in sorted(topics)[:8])
    return [whole[at * 60 : (at + 1) * 60] for at in range(COUNT)]


@cache
def rows() -> list[dict[str, Tensor]]:
    """Token rows of one length, with labels."""
    tokens = trained.tokenizer("llama")(" ".join(sorted(topics["types"].split("\n\n"))))["input_ids"]
    cut = [torch.tensor(tokens[at * LENGTH : (at + 1) * LENGTH]) for at in range(COUNT)]
    return [{"input_ids": ids, "labels": ids} for ids in cut]


def llama() -> nn.Module:
    """A fresh one."""
    return trained.fixture("llama")[0]


def trainer(
    home: Path,
    *callbacks: TrainerCallback,
    model: nn.Module | None = None,
    kind: type[Trainer] = Trainer,
    **settings: Any,
) -> Trainer:
    """A Trainer that does not talk."""
    arguments = TrainingArguments(str(home), **{**QUIET, **SHORT, **settings})
    return kind(
        llama() if model is None else model,
        arguments,
        train_dataset=rows(),
        eval_dataset=rows()[:4],
        callbacks=list(callbacks),
    )


def trained_weights(home: Path, *callbacks: TrainerCallback, **settings: Any) -> dict[str, Tensor]:
    """The weights after a short training."""
    run = trainer(home, *callbacks, **settings)
    run.train()
    return weights(run.model)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def saved_weights(home: Path) -> dict[str, Tensor]:
    """What a checkpoint has."""
    return load_file(home / "model.safetensors")


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """True if both have the same names and the same bits."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def logged(run: Trainer, name: str) -> list[float]:
    """What was logged by that name, in order."""
    return [line[name] for line in run.state.log_history if name in line]


def close(found: list[float], expected: list[float], *, within: float = 0.02) -> bool:
    """True if each is that close, as a share."""
    pairs = zip(found, expected, strict=True)
    return all(abs(one - other) <= within * abs(other) for one, other in pairs)


@cache
def report(name: str) -> Report:
    """A small report of a fixture."""
    model, tokenizer = trained.fixture(name)
    return ns.diagnose(model, tokenizer=tokenizer, n_samples=8, max_length=16)
