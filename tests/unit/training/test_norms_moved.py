"""Norm weights that are written to while noise is in them: refused, for putting the clean ones back would undo it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import noisescope as ns
from noisescope.errors import ExitOrder, ModelError
from short_trainings import QUIET, SHORT, llama, rows, same, weights

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")

MOVED = r"^model\.layers\.0\.input_layernorm: its weight was changed inside the step, .* needs OperatorNoise$"


def step_in_backward(model: nn.Module, *, counted: bool = True) -> None:
    """Each weight is moved as soon as its gradient is there, as memory-saving optimizers do."""

    def move(weight: torch.Tensor) -> None:
        with torch.no_grad():
            (weight if counted else weight.data).sub_(0.1 * weight.grad)
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(move)


def test_an_optimizer_that_runs_in_the_backward_pass_is_refused(tmp_path: Path) -> None:
    step_in_backward(model := llama())
    norms = {name: weight for name, weight in weights(model).items() if "norm" in name}
    settings = TrainingArguments(str(tmp_path), **{**QUIET, **SHORT, "max_grad_norm": 0.0})
    run = Trainer(model, settings, train_dataset=rows(), callbacks=[ns.NoiseCallback(ns.NormWeightNoise(0.05))])
    with pytest.raises(ExitOrder, match=MOVED):
        run.train()
    assert run.state.global_step == 0
    assert same({name: weight for name, weight in weights(model).items() if "norm" in name}, norms)


def test_so_is_one_that_writes_past_what_torch_counts() -> None:
    step_in_backward(model := llama(), counted=False)
    batch = {name: value.unsqueeze(0) for name, value in rows()[0].items()}
    with pytest.raises(ExitOrder, match=MOVED), ns.NoisyTraining(model, ns.NormWeightNoise(0.05)).step(0):
        model(**batch).loss.backward()


class LikeDeepspeed(Trainer):
    """Says that it runs DeepSpeed as soon as training begins; there it is asked for nothing else."""

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        self.is_deepspeed_enabled = True
        return prepared


def test_deepspeed_is_refused(tmp_path: Path) -> None:
    """Its engine steps in `backward`, and writes past what torch counts as changes of a weight."""
    settings = TrainingArguments(str(tmp_path), **QUIET, **SHORT)
    callback = ns.NoiseCallback(ns.NormWeightNoise(0.05))
    run = LikeDeepspeed(llama(), settings, train_dataset=rows(), callbacks=[callback])
    with pytest.raises(ModelError, match=r"^NormWeightNoise: with DeepSpeed a Trainer moves the weights .*$"):
        run.train()
    assert run.state.global_step == 0


@pytest.mark.parametrize("noise", [ns.OperatorNoise(0.05, phases="both"), ns.NormWeightNoise(0.0)])
def test_other_noise_does_not_mind(noise: Any) -> None:
    step_in_backward(model := llama())
    before, batch = weights(model), {name: value.unsqueeze(0) for name, value in rows()[0].items()}
    with ns.NoisyTraining(model, noise).step(0):
        model(**batch).loss.backward()
    moved = {name for name, weight in weights(model).items() if not torch.equal(weight, before[name])}
    assert {name for name in before if "norm" in name} <= moved


def test_an_optimizer_step_inside_the_block_is_refused() -> None:
    model = llama()
    training, optimizer = ns.NoisyTraining(model, ns.NormWeightNoise(0.05)), torch.optim.SGD(model.parameters(), 0.1)
    batch = {name: value.unsqueeze(0) for name, value in rows()[0].items()}

    def whole_step() -> None:
        model(**batch).loss.backward()
        optimizer.step()

    with pytest.raises(ExitOrder, match=MOVED), training.step(0):
        whole_step()


def test_two_noises_in_the_same_norms_are_no_such_case() -> None:
    model = llama()
    before, batch = weights(model), {name: value.unsqueeze(0) for name, value in rows()[0].items()}
    training = ns.NoisyTraining(model, ns.NormWeightNoise(0.05), ns.NormWeightNoise(0.05, seed=1, layers=0))
    with training.step(0):
        model(**batch).loss.backward()
    assert [line.changed for line in training.history] == [1088, 128]
    assert same(weights(model), before)
