"""P32: checkpoints never contain noise: not those of the Trainer, nor what anybody saves between two steps."""

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from digests import bits
from safetensors.torch import load_file
from trainings import NOISES, trainer, weights
from transformers import TrainerCallback

import noisescope as ns
from noisescope.training.norm_noise import NoisyNorms

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")

EVENTS = (
    *("on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"),
    *("on_log", "on_evaluate", "on_prediction_step", "on_save", "on_epoch_end", "on_train_end"),
)


class Watching(TrainerCallback):
    """Looks at the weights whenever a Trainer tells its callbacks anything."""

    def __init__(self) -> None:
        self.seen: dict[str, list[dict[str, str]]] = {}


for event in EVENTS:

    def look(self: Watching, *args: Any, model: Any = None, event: str = event, **_: Any) -> None:
        self.seen.setdefault(event, []).append(weights(model))

    setattr(Watching, event, look)


def files(directory: Path) -> dict[str, dict[str, str]]:
    """Every checkpoint in a directory."""
    found = sorted(directory.rglob("*.safetensors"))
    return {str(path.relative_to(directory)): {n: bits(v) for n, v in load_file(path).items()} for path in found}


def check(directory: Path, noise: str, **settings: Any) -> Watching:
    """With a learning rate of 0 all that is ever seen or saved must be the start."""
    watching, callback = Watching(), ns.NoiseCallback(NOISES[noise]())
    saves = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    run = trainer(directory, [watching, callback], learning_rate=0.0, max_steps=3, **saves, **settings)
    start = weights(run.model)
    run.train()
    run.save_model(str(directory / "last"))
    assert callback.history[0].scale == 0.05
    assert watching.seen.keys() == set(EVENTS)
    for event, looks in watching.seen.items():
        assert all(look == start for look in looks), event
    saved = files(directory)
    assert len(saved) == 4
    for name, found in saved.items():
        assert found == {key: start[key] for key in found}, name
    return watching


@pytest.mark.parametrize("noise", NOISES)
def test_what_is_saved_is_clean(tmp_path, noise):
    check(tmp_path, noise)


def test_also_the_best_model_loaded_at_the_end(tmp_path):
    check(tmp_path, "norm weights", load_best_model_at_end=True, gradient_checkpointing=True)


def test_a_checkpoint_is_what_training_goes_on_with(tmp_path):
    """With a learning rate: every checkpoint has the weights that the optimizer made, which nobody has disturbed."""
    watching = Watching()
    settings = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 3}
    trainer(tmp_path, [watching, ns.NoiseCallback(ns.NormWeightNoise(0.1))], **settings).train()
    for made, saved in zip(watching.seen["on_optimizer_step"], files(tmp_path).values(), strict=True):
        assert saved == {key: made[key] for key in saved}
    begun = watching.seen["on_step_begin"]
    assert begun[1:] == watching.seen["on_optimizer_step"][:2]
    assert begun[0] != begun[1]


def test_evaluation_is_clean_unless_asked(tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.0, "max_steps": 2}

    def losses(*callbacks: TrainerCallback) -> list[float]:
        run = trainer(tmp_path, callbacks, **settings)
        run.train()
        found = [row["eval_loss"] for row in run.state.log_history if "eval_loss" in row]
        return [*found, run.evaluate()["eval_loss"]]

    clean = losses()
    for noise in (ns.NormWeightNoise(0.1), ns.OperatorNoise(0.1, operators="linear")):
        assert losses(ns.NoiseCallback(noise)) == clean
        noisy = losses(ns.NoiseCallback(noise, in_evaluation=True))
        assert noisy[0] != clean[0]
        assert noisy[0] != noisy[1], "each evaluation has draws of its own"
        assert noisy[2] == clean[2], "after the training there is no noise"


# --- able to fail -----------------------------------------------------------------------------------------------


def the_noise_stays_until_the_next_draw(monkeypatch):
    """As an implementation would that restores before it draws, and never else."""
    real, opened = NoisyNorms.noisy, []

    @contextmanager
    def mutant(self, step, scale, *, trial):
        while opened:
            opened.pop().__exit__(None, None, None)
        opened.append(real(self, step, scale, trial=trial))
        opened[-1].__enter__()
        yield

    monkeypatch.setattr(NoisyNorms, "noisy", mutant)


def weights_are_not_restored(monkeypatch):
    """Noise adds up from step to step."""
    opened = []
    real = NoisyNorms.noisy

    @contextmanager
    def mutant(self, step, scale, *, trial):
        opened.append(real(self, step, scale, trial=trial))
        opened[-1].__enter__()
        yield

    monkeypatch.setattr(NoisyNorms, "noisy", mutant)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    the_noise_stays_until_the_next_draw,
    weights_are_not_restored,
)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_mutants_are_caught(tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path, "norm weights")
