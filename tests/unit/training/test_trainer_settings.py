"""What a Trainer can be told to do, with noise in it: precision, checkpointing, epochs, compilation, evaluation."""

import logging
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import noisescope as ns
from noisescope.errors import CompiledModel, InputError
from short_trainings import (
    FEW,
    QUIET,
    SHORT,
    close,
    llama,
    logged,
    rows,
    same,
    trained_weights,
    trainer,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")

few = partial(ns.OperatorNoise, 0.05, **FEW)


def both(**settings: Any) -> ns.NoiseCallback:
    """Noise of both kinds, forward and backward."""
    return ns.NoiseCallback(few(phases="both"), ns.NormWeightNoise(0.05), **settings)


def test_bfloat16_has_the_noise_that_was_asked_for(tmp_path: Path) -> None:
    callback = ns.NoiseCallback(ns.OperatorNoise(0.05, phases="both"), ns.NormWeightNoise(0.05))
    run = trainer(tmp_path, callback, bf16=True, max_steps=2)
    start = weights(run.model)
    run.train()
    assert close(logged(run, "noise_dose"), [0.05] * 2)
    assert close(logged(run, "norm_noise_dose"), [0.05] * 2)
    assert not any(torch.equal(weight, start[name]) for name, weight in weights(run.model).items() if "norm" in name)
    plain = trainer(tmp_path, bf16=True, max_steps=2)
    plain.train()
    assert logged(run, "loss")[0] != logged(plain, "loss")[0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_bit(tmp_path: Path, reentrant: bool) -> None:
    everywhere = partial(ns.NoiseCallback, ns.OperatorNoise(0.05, phases="both"), ns.NormWeightNoise(0.05))
    plain = trained_weights(tmp_path, everywhere(), max_steps=2)
    again = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    run = trainer(tmp_path, everywhere(), max_steps=2, **again)
    run.train()
    assert run.model.is_gradient_checkpointing
    assert same(weights(run.model), plain)


def test_accumulated_gradients_draw_anew_at_operators_and_share_norms(tmp_path: Path) -> None:
    """The same rows twice: noise at operators differs between the two passes, that in norm weights does not."""
    losses: dict[str, list[float]] = {}

    class Twice(Trainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            batches, items = super().get_batch_samples(*args, **kwargs)
            return [dict(batches[0]) for _ in batches], items

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            loss = super().training_step(*args, **kwargs)
            losses[kind].append(float(loss))
            return loss

    for kind, noise in {"noise": few(), "norm_noise": ns.NormWeightNoise(0.05)}.items():
        losses[kind] = []
        settings = TrainingArguments(str(tmp_path), **{**QUIET, **SHORT, "gradient_accumulation_steps": 2})
        callback = ns.NoiseCallback(noise)
        Twice(llama(), settings, train_dataset=rows() * 2, callbacks=[callback]).train()
        assert [(line.first, line.last) for line in callback.history] == [(0, 0), (1, 1), (2, 2)]
    assert all(first != second for first, second in zip(losses["noise"][::2], losses["noise"][1::2], strict=True))
    assert losses["norm_noise"][::2] == losses["norm_noise"][1::2]


def test_schedules_by_epoch(tmp_path: Path) -> None:
    noise = few(schedule=ns.LinearSchedule(0.1, 0.05))
    callback = ns.NoiseCallback(noise, by="epoch")
    run = trainer(tmp_path, callback, max_steps=-1, num_train_epochs=2)
    run.train()
    expected = [0.1] * 4 + [0.05] * 4
    assert logged(run, "noise_scale") == pytest.approx(expected)
    assert close(logged(run, "noise_dose"), expected)


def test_operator_noise_is_refused_for_compiled_code_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")  # transformers sets it, and does not take it back
    run = trainer(tmp_path, ns.NoiseCallback(few()), torch_compile=True, torch_compile_backend="eager")
    start = weights(run.model)
    why = "is compiled, noise cannot reach inside; train without torch_compile, or with NormWeightNoise"
    with pytest.raises(CompiledModel, match=f"^LlamaForCausalLM {why}$"):
        run.train()
    assert run.state.global_step == 0
    assert same(weights(run.model), start)


def test_norm_noise_reaches_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own backend computes what eager code does, so the trained weights are the same bits."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")
    noise = partial(ns.NoiseCallback, ns.NormWeightNoise(0.05))
    compiled = trainer(tmp_path, noise(gradient_ratio_every=2), torch_compile=True, torch_compile_backend="eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Dynamo does not know how to trace")  # the watching of gradients, for one
        compiled.train()
    assert "_orig_mod" in compiled.model_wrapped._modules
    plain = trainer(tmp_path, noise(gradient_ratio_every=2))
    plain.train()
    assert same(weights(compiled.model), weights(plain.model))
    assert not same(weights(compiled.model), trained_weights(tmp_path))
    assert len(logged(plain, "gradient_ratio")) == 2
    assert logged(compiled, "gradient_ratio") == logged(plain, "gradient_ratio")
    torch.compiler.reset()


@pytest.mark.parametrize("settings", [{"dataloader_num_workers": 2}, {"train_sampling_strategy": "group_by_length"}])
def test_settings_of_the_data_do_not_touch_the_noise(tmp_path: Path, settings: dict[str, Any]) -> None:
    """All rows are of one length, so grouping is another order at the most; the doses are those of a plain run."""
    plain, other = both(), both()
    trained_weights(tmp_path, plain)
    changed = trained_weights(tmp_path, other, **settings)
    for one, two in zip(plain.history, other.history, strict=True):
        assert close([one.dose], [two.dose], within=0.01)
    assert not same(changed, trained_weights(tmp_path, **settings))


@pytest.mark.parametrize("noise", [ns.OperatorNoise(0.2), ns.NormWeightNoise(0.2)])
def test_evaluation_has_noise_only_if_asked(tmp_path: Path, noise: Any) -> None:
    still = {"learning_rate": 0.0, "max_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    plain = trainer(tmp_path, ns.NoiseCallback(noise), **still)
    noisy = trainer(tmp_path, ns.NoiseCallback(noise, in_evaluation=True), **still)
    for run in (plain, noisy):
        run.train()
    clean = plain.evaluate()["eval_loss"]
    assert logged(plain, "eval_loss")[:2] == [clean, clean]
    first, second = logged(noisy, "eval_loss")
    assert first > 1.01 * clean
    assert second > 1.01 * clean
    assert first != second, "draws of their own at every evaluation"
    assert noisy.evaluate()["eval_loss"] == clean


def test_noise_in_evaluations_is_no_part_of_the_training(tmp_path: Path) -> None:
    plain, noisy = both(), both(in_evaluation=True)
    often = {"eval_strategy": "steps", "eval_steps": 1}
    assert same(trained_weights(tmp_path, noisy, **often), trained_weights(tmp_path, plain, **often))
    assert noisy.history == plain.history


def test_an_evaluation_between_accumulated_gradients_does_not_repeat_their_draws(tmp_path: Path) -> None:
    class Evaluating(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.evaluate()

    twice = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    run = trainer(tmp_path, both(in_evaluation=True), Evaluating(), **twice)
    run.train()
    assert len(logged(run, "eval_loss")) == 3
    assert same(weights(run.model), trained_weights(tmp_path, both(), **twice))


@pytest.mark.parametrize("noise", [few(), ns.NormWeightNoise(0.05)])
def test_an_evaluation_draws_otherwise_than_the_step_behind_it(noise: Any) -> None:
    training = ns.NoisyTraining(llama(), noise)
    batch = {name: value.unsqueeze(0) for name, value in rows()[0].items()}
    losses = []
    for noisy in (training.step, training.evaluation, training.step):
        with noisy(3), torch.no_grad():
            losses.append(float(training.model(**batch).loss))
    assert losses[1] not in (losses[0], losses[2])


@pytest.mark.parametrize("random", [{}, {"neftune_noise_alpha": 5.0}])
def test_measuring_gradients_changes_no_bit_of_the_training(tmp_path: Path, random: dict[str, Any]) -> None:
    """Also where the training draws numbers itself, in every forward pass."""
    run = trainer(tmp_path, both(gradient_ratio_every=2), **random)
    run.train()
    assert [line["step"] for line in run.state.log_history if "gradient_ratio" in line] == [1, 3]
    assert all(0.5 < ratio < 2 and ratio != 1 for ratio in logged(run, "gradient_ratio"))
    assert same(weights(run.model), trained_weights(tmp_path, both(), **random))


def test_gradients_are_measured_with_checkpointing_that_does_not_reenter(tmp_path: Path) -> None:
    again = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    with_checkpoints = trainer(tmp_path, both(gradient_ratio_every=1), **again)
    plain = trainer(tmp_path, both(gradient_ratio_every=1))
    for run in (with_checkpoints, plain):
        run.train()
    assert logged(with_checkpoints, "gradient_ratio") == logged(plain, "gradient_ratio")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"label_smoothing_factor": 0.1}, "the model's output has no loss; it has one where labels are given to it"),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            "reentrant checkpointing cannot; use use_reentrant=False",
        ),
    ],
)
def test_where_gradients_cannot_be_measured_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], why: str
) -> None:
    run = trainer(tmp_path, both(gradient_ratio_every=1), **settings)
    with caplog.at_level(logging.WARNING, "noisescope.training"):
        run.train()
    said = [record.getMessage() for record in caplog.records if record.name == "noisescope.training"]
    assert said == [f"gradient_ratio: not measured; {why}"]
    assert run.state.global_step == 3
    assert close(logged(run, "noise_dose"), [0.05] * 3)
    assert not logged(run, "gradient_ratio")
    assert same(weights(run.model), trained_weights(tmp_path, both(), **settings))


def test_a_batch_size_that_is_found(tmp_path: Path) -> None:
    """A step that runs out of memory leaves no noise, and the training begins again with smaller batches."""
    tried = []

    class Small(Trainer):
        def compute_loss(self, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            tried.append(len(inputs["input_ids"]))
            if tried[-1] > 2:
                raise RuntimeError("CUDA out of memory.")
            return loss

    callback = ns.NoiseCallback(few(), ns.NormWeightNoise(0.05))
    settings = {**QUIET, **SHORT, "auto_find_batch_size": True}
    run = Small(llama(), TrainingArguments(str(tmp_path), **settings), train_dataset=rows(), callbacks=[callback])
    run.train()
    assert tried == [4, 3, 2, 2, 2]
    assert [(line.first, line.last) for line in callback.history] == [(0, 0), (1, 1), (2, 2)] * 2
    assert "training_step" not in vars(run)
    found = trained_weights(tmp_path, ns.NoiseCallback(few(), ns.NormWeightNoise(0.05)), per_device_train_batch_size=2)
    assert same(weights(run.model), found)


class Endless(IterableDataset[dict[str, Tensor]]):
    """Rows without a number of them."""

    def __iter__(self) -> Any:
        return iter(rows())


def test_data_without_a_length_has_schedules_by_step_only(tmp_path: Path) -> None:
    settings = TrainingArguments(str(tmp_path), **QUIET, **SHORT)
    noise = few(schedule=ns.LinearSchedule(0.06, 0.04))
    by_step = Trainer(llama(), settings, train_dataset=Endless(), callbacks=[ns.NoiseCallback(noise)])
    by_step.train()
    assert logged(by_step, "noise_scale") == pytest.approx([0.06, 0.05, 0.04])
    by_epoch = Trainer(llama(), settings, train_dataset=Endless(), callbacks=[ns.NoiseCallback(noise, by="epoch")])
    with pytest.raises(InputError, match=r'^by: got "epoch", expected "step" for data whose length is not known.*$'):
        by_epoch.train()
