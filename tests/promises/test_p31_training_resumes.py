"""P31: N steps, a checkpoint and N more are 2 N steps, bit for bit; with scale 0 training is that without noise."""

from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from trainings import losses, trainer, weights
from transformers import TrainerCallback

import noisescope as ns
from noisescope.training.norm_noise import NoisyNorms
from noisescope.training.operator_noise import InjectingNoise
from noisescope.training.running import NoisyTraining

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")

STAGES = ns.ExponentialStages(0.1, 0.01, stages=3)
NOISES: dict[str, Callable[[], Any]] = {
    "operators": lambda: ns.OperatorNoise(1.0, schedule=STAGES, layers="3-4", phases="both"),
    "norm weights": lambda: ns.NormWeightNoise(STAGES),
    "linear schedule": lambda: ns.OperatorNoise(1.0, schedule=ns.LinearSchedule(0.1), layers=[2], operators="linear"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing": {"gradient_checkpointing": True},
    "two epochs": {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 3},
}


class StopAt(TrainerCallback):
    """Ends a training early, as a time limit would, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_save = control.should_training_stop = state.global_step == self.step
        return control


def check_resumed(directory: Path, noise: str, *, by: str = "step", **settings: Any) -> None:
    """Six steps at once, and three, a checkpoint, and three."""
    settings = {"max_steps": 6, **settings}

    def callback() -> ns.NoiseCallback:
        return ns.NoiseCallback(NOISES[noise](), by=by)

    straight = trainer(directory / "straight", [callback()], **settings)
    straight.train()
    first = trainer(directory / "parts", [callback(), StopAt(3)], **settings)
    first.train()
    second = trainer(directory / "parts", [callback()], **settings)
    second.train(resume_from_checkpoint=str(directory / "parts" / "checkpoint-3"))
    assert len(losses(straight)) == 6
    assert weights(second.model) == weights(straight.model)
    assert losses(second) == losses(straight)
    scales = [[row.get("noise_scale", row.get("norm_noise_scale")) for row in run.state.log_history[:6]]
              for run in (second, straight)]  # fmt: skip
    assert scales[0] == scales[1]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("noise", ["operators", "norm weights"])
def test_a_resumed_training_is_the_straight_one(tmp_path, noise, setting):
    check_resumed(tmp_path, noise, **SETTINGS[setting])


@pytest.mark.parametrize(("noise", "by"), [("linear schedule", "step"), ("norm weights", "epoch")])
def test_also_with_other_schedules(tmp_path, noise, by):
    check_resumed(tmp_path, noise, by=by, **SETTINGS["two epochs"])


def check_identity(directory: Path, callback: ns.NoiseCallback, **settings: Any) -> None:
    plain, noisy = trainer(directory, **settings), trainer(directory, [callback], **settings)
    for run in (plain, noisy):
        run.train()
    assert weights(noisy.model) == weights(plain.model)
    assert losses(noisy) == losses(plain)


ZERO = {
    "operators": lambda: ns.OperatorNoise(0.0, phases="both"),
    "norm weights": lambda: ns.NormWeightNoise(0.0),
    "factors": lambda: ns.OperatorNoise(0.1, adaptive=ns.AdaptiveNoise({3: 0.0}), operators="linear", phases="both"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("noise", ZERO)
def test_scale_0_is_no_callback(tmp_path, noise, setting):
    check_identity(tmp_path, ns.NoiseCallback(ZERO[noise](), in_evaluation=True), **SETTINGS[setting])


def test_a_first_stage_without_noise_is_no_callback_either(tmp_path):
    noise = ns.OperatorNoise(1.0, schedule=ns.ExponentialStages(0.1, 0.1, stages=2))
    plain, noisy = trainer(tmp_path), trainer(tmp_path, [ns.NoiseCallback(noise)])
    for run in (plain, noisy):
        run.train()
    assert losses(noisy)[:2] == losses(plain)[:2]
    assert losses(noisy)[2] != losses(plain)[2]


def test_runs_differ_by_their_seed_alone(tmp_path):
    found = []
    for seed in (0, 0, 1):
        run = trainer(tmp_path, [ns.NoiseCallback(ns.OperatorNoise(0.05, layers=[3], seed=seed))], max_steps=1)
        run.train()
        found.append(weights(run.model))
    assert found[0] == found[1] != found[2]


# --- able to fail -----------------------------------------------------------------------------------------------


def draws_count_from_where_the_process_began(monkeypatch):
    for kind in (InjectingNoise, NoisyNorms):

        def mutated(real):
            numbers = count()

            @contextmanager
            def mutant(self, step, scale, *, trial):
                with real(self, step, scale, trial=next(numbers)):
                    yield

            return mutant

        monkeypatch.setattr(kind, "noisy", mutated(kind.noisy))


def the_schedule_begins_anew(monkeypatch):
    real = NoisyTraining.scales

    def mutant(self, at):
        self.__dict__.setdefault("began", at)
        return real(self, at - self.began)

    monkeypatch.setattr(NoisyTraining, "scales", mutant)


def noise_has_a_least_scale(monkeypatch):
    real = NoisyTraining.scales
    monkeypatch.setattr(
        NoisyTraining, "scales", lambda self, at: {name: max(1e-3, scale) for name, scale in real(self, at).items()}
    )


@pytest.mark.parametrize("mutant", [draws_count_from_where_the_process_began, the_schedule_begins_anew])
def test_mutants_of_resuming_are_caught(tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_resumed(tmp_path, "norm weights")


@pytest.mark.parametrize("noise", ["operators", "norm weights"])
def test_a_mutant_of_the_identity_is_caught(tmp_path, monkeypatch, noise):
    noise_has_a_least_scale(monkeypatch)
    with pytest.raises(AssertionError):
        check_identity(tmp_path, ns.NoiseCallback(ZERO[noise]()))
