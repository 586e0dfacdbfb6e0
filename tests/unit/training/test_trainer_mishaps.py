"""A NoiseCallback that is used again, twice at once or in a training that raises: never noise where none was meant."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

import noisescope as ns
from noisescope.errors import InputError
from noisescope.injection import is_injecting
from short_trainings import FEW, close, llama, logged, same, trained_weights, trainer, weights

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")

few = partial(ns.OperatorNoise, 0.05, **FEW)


def both(**settings: Any) -> ns.NoiseCallback:
    """Noise of both kinds."""
    return ns.NoiseCallback(few(), ns.NormWeightNoise(0.05), **settings)


class Unusual(Trainer):
    """Makes its steps by itself."""

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> None:
        events, settings, state = self.callback_handler, self.args, self.state
        state.max_steps = 1
        events.on_train_begin(settings, state, self.control)
        events.on_step_begin(settings, state, self.control)
        state.global_step = 1
        events.on_step_end(settings, state, self.control)


def test_a_trainer_whose_steps_have_no_noise_is_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path, both(), kind=Unusual)
    with pytest.raises(InputError, match=r"^NoiseCallback: Unusual has made a step without its training_step, where"):
        run.train()


class Adding(TrainerCallback):
    """Adds a callback behind the first step."""

    def __init__(self, late: ns.NoiseCallback) -> None:
        self.late, self.run = late, None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.run.add_callback(self.late)


def test_a_callback_that_is_added_to_a_training_begins_there(tmp_path: Path) -> None:
    adding = Adding(late := both())
    adding.run = run = trainer(tmp_path, adding)
    run.train()
    for kind in ("noise", "norm_noise"):
        assert [line.first for line in late.history if line.kind == kind] == [1, 2]
    assert "training_step" not in vars(run)
    second = Adding(both())
    second.run = trainer(tmp_path, both(), second)
    with pytest.raises(InputError, match="NoiseCallback: is in this Trainer twice"):
        second.run.train()


class Raising(TrainerCallback):
    """Stops a training the hard way, behind a number of steps."""

    def __init__(self, behind: int = 1) -> None:
        self.behind = behind

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.behind:
            raise KeyError("stopped")


def stopped(home: Path, *callbacks: Any, **settings: Any) -> Any:
    """A trainer whose training was stopped that way."""
    run = trainer(home, *callbacks, raising := Raising(), **settings)
    with pytest.raises(KeyError, match="stopped"):
        run.train()
    run.remove_callback(raising)
    return run


def test_training_twice_is_training_anew(tmp_path: Path) -> None:
    """The second `train` goes on with the weights, and its steps count from 0 again: the same draws."""
    callback = both()
    run = trainer(tmp_path, callback)
    run.train()
    first = callback.history
    run.train()
    assert [(line.kind, line.first, line.scale, line.elements) for line in callback.history] == [
        (line.kind, line.first, line.scale, line.elements) for line in first
    ]
    assert "training_step" not in vars(run)
    plain = trainer(tmp_path)
    plain.train()
    plain.train()
    assert not same(weights(run.model), weights(plain.model))


def test_one_callback_in_two_trainers_one_after_the_other(tmp_path: Path) -> None:
    callback = both()
    first, second = trainer(tmp_path, callback), trainer(tmp_path, callback)
    for run in (first, second):
        run.train()
        assert not {"training_step", "log", "evaluation_loop"} & vars(run).keys()
    assert same(weights(first.model), weights(second.model))
    assert same(weights(first.model), trained_weights(tmp_path, both()))


def test_one_callback_in_a_training_within_a_training_is_refused(tmp_path: Path) -> None:
    """It has one place for the noise of one model, and would leave the outer training without a word."""

    class Training(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            trainer(tmp_path, callback).train()

    callback = both()
    with pytest.raises(InputError, match=r"^NoiseCallback: is at work in a training around this one; .* its own$"):
        trainer(tmp_path, callback, Training()).train()


@pytest.mark.parametrize("together", [lambda: [one := both(), one], lambda: [both(), both()]])
def test_two_callbacks_are_refused(tmp_path: Path, together: Any) -> None:
    run = trainer(tmp_path, *together())
    with pytest.raises(InputError, match=r"^NoiseCallback: is in this Trainer twice; .*\(first, second\)$"):
        run.train()
    assert run.state.global_step == 0
    assert "training_step" not in vars(run)


def test_an_exception_leaves_everything_clean(tmp_path: Path) -> None:
    model = llama()
    clean = trainer(tmp_path, model=model).evaluate()["eval_loss"]
    start = weights(model)
    run = stopped(tmp_path, both(in_evaluation=True), model=model, learning_rate=0.0)
    assert not is_injecting()
    assert same(weights(model), start)
    assert run.evaluate()["eval_loss"] == clean


def test_after_an_exception_a_training_goes_as_if_there_had_been_none(tmp_path: Path) -> None:
    run = stopped(tmp_path, callback := both(), learning_rate=0.0)
    run.args.learning_rate, run.optimizer = 1e-3, None
    run.train()
    assert close([line.dose for line in callback.history], [0.05] * 6, within=0.03)
    assert same(weights(run.model), trained_weights(tmp_path, both()))


def test_a_callback_that_was_removed_after_an_exception_puts_noise_nowhere(tmp_path: Path) -> None:
    run = stopped(tmp_path, callback := both(), learning_rate=0.0)
    run.remove_callback(callback)
    run.args.learning_rate, run.optimizer = 1e-3, None
    run.train()
    assert not logged(run, "noise_scale")
    assert same(weights(run.model), trained_weights(tmp_path))


def test_another_callback_after_an_exception_is_the_only_one(tmp_path: Path) -> None:
    run = stopped(tmp_path, callback := both(), learning_rate=0.0)
    run.remove_callback(callback)
    run.add_callback(ns.NoiseCallback(few()))
    run.args.learning_rate, run.optimizer = 1e-3, None
    run.train()
    assert same(weights(run.model), trained_weights(tmp_path, ns.NoiseCallback(few())))


def test_a_trainer_that_was_stopped_evaluates_clean_within_the_training_of_another(tmp_path: Path) -> None:
    found = []

    class Evaluating(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            found.append(run.evaluate()["eval_loss"])

    run = stopped(tmp_path, both(in_evaluation=True), learning_rate=0.0)
    clean = run.evaluate()["eval_loss"]
    trainer(tmp_path, Evaluating(), max_steps=1).train()
    assert found == [clean]


def test_noise_in_an_evaluation_before_the_first_step(tmp_path: Path) -> None:
    settings = {"eval_on_start": True, "eval_strategy": "no", "learning_rate": 0.0, "max_steps": 1}
    run = trainer(tmp_path, both(in_evaluation=True), **settings)
    run.train()
    noisy = logged(run, "eval_loss")
    assert len(noisy) == 1
    assert noisy[0] != run.evaluate()["eval_loss"]
