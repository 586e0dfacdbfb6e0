"""P30: an exception at any place of any step leaves the model clean: its weights, its outputs, and the process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from digests import bits, digest, quarantine
from torch import Tensor, nn
from trainings import NOISES, rows, trainer
from transformers import Trainer, TrainerCallback

import noisescope as ns
from noisescope.training.norm_noise import NoisyNorms
from noisescope.training.operator_noise import InjectingNoise

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")


class Trouble(Exception):
    """What is raised."""


class Troubled(Trainer):
    """A Trainer in which something is raised at one place of one step."""

    place, at = "", 0

    def _trouble(self, place: str) -> None:
        if place == self.place and self.state.global_step == self.at:
            raise Trouble(place)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        def fail(*_: Any) -> None:
            self._trouble("forward")

        with_hook = model.model.layers[4].mlp.register_forward_hook(fail)
        try:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            with_hook.remove()
        self._trouble("loss")
        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.register_hook(lambda grad: self._trouble("backward"))
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        found = super().evaluation_loop(*args, **kwargs)
        if self.place == "evaluation" and self.state.global_step == self.at + 1:
            raise Trouble("evaluation")
        return found

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.register_step_pre_hook(lambda *_: self._trouble("optimizer"))
        return optimizer


class Saving(TrainerCallback):
    """Somebody else's callback, which fails while a checkpoint is saved."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at + 1:
            raise Trouble("saving")


PLACES = ("forward", "loss", "backward", "optimizer", "evaluation", "saving")
STEPS = (0, 1, 2)


def check(tmp_path: Any, noise: str, place: str, at: int) -> None:
    """With a learning rate of 0 the weights must stay what they were, whatever happens."""
    callback = ns.NoiseCallback(NOISES[noise](), in_evaluation=True)
    saves = {"save_strategy": "steps", "save_steps": 1} if place == "saving" else {}
    evaluates = {"eval_strategy": "steps", "eval_steps": 1} if place == "evaluation" else {}
    others = [Saving(at)] if place == "saving" else []
    run = trainer(tmp_path, [callback, *others], kind=Troubled, learning_rate=0.0, max_steps=3, **saves, **evaluates)
    run.place, run.at = place, at
    run.model._is_accelerate_prepared = True  # as the Trainer will note on it
    with clean_output(run.model):
        before = digest(run.model)
        with pytest.raises(Trouble, match=place):
            run.train()
        assert callback.history, "there was noise before the trouble"
        run.model.train()
        run.model.zero_grad(set_to_none=True)
        after = digest(run.model)
        for name in before:
            assert "random" in name or after[name] == before[name], name


@contextmanager
def clean_output(model: nn.Module) -> Iterator[None]:
    """What the model computes afterwards is what it computed before."""

    def computed() -> str:
        with torch.no_grad():
            return bits(model(input_ids=torch.stack([row["input_ids"] for row in rows()[:2]])).logits)

    before = computed()
    yield
    assert computed() == before


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("noise", NOISES)
def test_an_exception_leaves_the_model_clean(tmp_path, noise, place, at):
    check(tmp_path, noise, place, at)


@pytest.mark.parametrize("noise", NOISES)
def test_so_does_an_interrupt_in_a_loop_of_ones_own(noise):
    run = trainer("unused")
    before = digest(run.model)
    training = ns.NoisyTraining(run.model, NOISES[noise]())

    def interrupted() -> None:
        with training.step(0):
            run.model(**{name: value[None] for name, value in rows()[0].items()})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert digest(run.model) == before


@contextmanager
def interrupted_while_putting_back(at: int) -> Iterator[list[str]]:
    """Ctrl-C at the start of the function that puts clean weights back, or at one of its lines; yields the events."""
    seen: list[str] = []

    def strike(frame: Any, event: str, _: Any) -> Any:
        seen.append(event)
        if len(seen) == at + 1:
            raise KeyboardInterrupt
        return strike

    def tracer(frame: Any, event: str, argument: Any) -> Any:
        return strike(frame, event, argument) if frame.f_code is NoisyNorms._put_back.__code__ else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield seen
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("at", range(3))
def test_so_does_an_interrupt_that_strikes_while_weights_are_put_back(at):
    run = trainer("unused")
    before = digest(run.model)
    training = ns.NoisyTraining(run.model, NOISES["norm weights"]())

    def step() -> None:
        with training.step(0):
            run.model(**{name: value[None] for name, value in rows()[0].items()})

    with interrupted_while_putting_back(at) as seen, pytest.raises(KeyboardInterrupt):
        step()
    assert len(seen) == at + 1, "tracing ends with it"
    assert digest(run.model) == before


# --- able to fail -----------------------------------------------------------------------------------------------


def closed_only_if_all_goes_well(monkeypatch, kind):
    real, opened = kind.noisy, []

    @contextmanager
    def mutant(self, step, scale, *, trial):
        opened.append(real(self, step, scale, trial=trial))  # kept, so that no garbage collection closes it
        opened[-1].__enter__()
        yield
        opened[-1].__exit__(None, None, None)

    monkeypatch.setattr(kind, "noisy", mutant)


def weights_are_restored_only_if_all_goes_well(monkeypatch):
    closed_only_if_all_goes_well(monkeypatch, NoisyNorms)


def the_injection_is_closed_only_if_all_goes_well(monkeypatch):
    closed_only_if_all_goes_well(monkeypatch, InjectingNoise)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "norm weights": weights_are_restored_only_if_all_goes_well,
    "operators": the_injection_is_closed_only_if_all_goes_well,
}


@pytest.mark.parametrize("noise", NOISES)
def test_the_mutants_are_caught(tmp_path, monkeypatch, noise):
    with quarantine():
        MUTANTS[noise](monkeypatch)
        with pytest.raises(AssertionError):
            check(tmp_path, noise, "backward", 0)
