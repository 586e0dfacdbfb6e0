"""P1: after any exit, outputs, weights, buffers, flags, random states and the user's hooks are bit-identical."""

import gc
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import ClassVar

import numpy as np
import pytest
import torch
from digests import bits, digest, quarantine
from torch import nn

import noisescope as ns
from families import build, tokens
from noisescope.injection import Watch
from noisescope.injection.showing import Showing

PHASES = ("forward", "backward", "both")


class Stop(Exception):
    """An error of the user's own."""


class Fails:
    """Noise that raises at its nth call; the calls before it disturb as noise does."""

    name: ClassVar[str] = "fails"
    sparse: ClassVar[bool] = False
    scale = 0.01

    def __init__(self, at: int, error: type[BaseException] = Stop) -> None:
        self.at, self.error, self.calls = at, error, 0

    def disturb_(self, value, scale, key):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        value.mul_(1 + scale)

    def dose(self, seen):
        return seen.mean_rel_error


def run(model: nn.Module, inputs: dict[str, torch.Tensor], *, backward: bool = True) -> list[str]:
    """The bits of the logits, and of the gradients of a loss."""
    with torch.set_grad_enabled(backward):
        logits = model(**inputs, use_cache=False).logits
    if backward:
        logits.float().square().mean().backward()
    found = [bits(logits), *(bits(parameter.grad) for parameter in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


class Restoration:
    """How a model was before; `check` compares with it."""

    def __init__(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        self.model, self.inputs = model, inputs
        self.clean, self.before = run(model, inputs), digest(model)

    def check(self, act: Callable[[], object]) -> bool:
        """Whatever `act` does and however it ends, nothing is left of it. True if it came to its end."""
        try:
            act()
            ended = True
        except (Stop, KeyboardInterrupt):
            ended = False
            self.model.zero_grad(set_to_none=True)  # half a backward pass leaves half the sums, injected or not
        assert digest(self.model) == self.before
        assert run(self.model, self.inputs) == self.clean
        return ended


def check_restored(model: nn.Module, act: Callable[[], object]) -> bool:
    return Restoration(model, tokens()).check(act)


def check_every_call(model, inputs, *, phases, error=Stop, every=1, **where) -> int:
    """Fails the 1st, 2nd, ... intercepted call until a run comes to its end. Returns the number of calls."""
    restoration = Restoration(model, inputs)
    for at in count(1, every):
        noise = Fails(at, error)

        def act(noise=noise) -> None:
            with ns.inject(model, noise, phases=phases, **where):
                run(model, inputs, backward=phases != "forward")

        if restoration.check(act):
            assert noise.calls < at
            return noise.calls
    raise AssertionError("no run ever ended")


# --- an error in any intercepted call ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("phases", PHASES)
def test_an_error_in_any_call_leaves_no_trace(tiny, phases, error):
    every = 1 if error is Stop else 9
    assert check_every_call(tiny, tokens(), phases=phases, error=error, every=every) > 20


@pytest.mark.parametrize("phases", PHASES)
def test_other_families(family, phases):
    name, model = family
    assert check_every_call(model, tokens(name), phases=phases, every=29) > 20


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_error_while_checkpointing_recomputes(tiny, reentrant, error):
    tiny.train()
    tiny.gradient_checkpointing_enable({"use_reentrant": reentrant})
    tiny.enable_input_require_grads()
    forward_calls = check_every_call(tiny, tokens(), phases="forward", every=1000)
    assert check_every_call(tiny, tokens(), phases="both", error=error, every=11) > 2 * forward_calls


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_trained_models(request, name):
    model = request.getfixturevalue(name)
    ids = torch.randint(3, 500, (1, 16), generator=torch.Generator().manual_seed(1))
    layers = [0, 5, "head"]
    assert check_every_call(model, {"input_ids": ids}, phases="both", every=29, layers=layers) > 30


# --- an error in the model itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["starts", "ends", "backward"])
def test_an_error_in_any_module_leaves_no_trace(tiny, when, error):
    left = [0]

    def fail(*_):
        left[0] -= 1
        if left[0] == 0:
            raise error

    for module in tiny.modules():
        if when == "starts":
            module.register_forward_pre_hook(fail)
        elif when == "ends":
            module.register_forward_hook(fail)
        elif isinstance(module, nn.Linear):
            module.register_full_backward_hook(fail)

    restoration = Restoration(tiny, tokens())
    for at in count(1, 3):

        def act(at=at) -> None:
            left[0] = at
            try:
                with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
                    run(tiny, tokens())
            finally:
                left[0] = 0

        if restoration.check(act):
            break
    assert at > (10 if when == "backward" else 20)


def test_an_error_of_the_caller_between_forwards(tiny):
    def act() -> None:
        with ns.inject(tiny, ns.RelativeGaussian(0.05)):
            run(tiny, tokens())
            with ns.inject(tiny, ns.BitFlip(0.01), operators="softmax", seed=3):
                run(tiny, tokens())
                raise Stop

    assert not check_restored(tiny, act)


def test_a_refusal_at_the_door_or_at_the_end_leaves_no_trace(tiny):
    def refused_at_the_end() -> None:
        with pytest.raises(ns.NoisescopeError), ns.inject(tiny, ns.RelativeGaussian(0.05), operators="gelu"):
            run(tiny, tokens())

    def refused_at_the_door() -> None:
        with pytest.raises(ns.NoisescopeError), ns.inject(tiny, ns.RelativeGaussian(0.05), layers=9):
            run(tiny, tokens())

    assert check_restored(tiny, refused_at_the_end)
    assert check_restored(tiny, refused_at_the_door)


# --- generators -------------------------------------------------------------------------------------------------


def noisy_outputs(model: nn.Module) -> Iterator[object]:
    with ns.inject(model, ns.RelativeGaussian(0.05), phases="both"):
        while True:
            yield run(model, tokens())


def test_a_generator_that_is_closed(tiny):
    def act() -> None:
        outputs = noisy_outputs(tiny)
        next(outputs), next(outputs)
        outputs.close()

    assert check_restored(tiny, act)


def test_a_generator_that_is_thrown_into(tiny):
    def act() -> None:
        outputs = noisy_outputs(tiny)
        next(outputs)
        outputs.throw(KeyboardInterrupt)

    assert not check_restored(tiny, act)


def test_a_generator_that_is_forgotten(tiny):
    def act() -> None:
        outputs = noisy_outputs(tiny)
        next(outputs)
        del outputs
        gc.collect()

    assert check_restored(tiny, act)


def test_two_generators_closed_in_the_order_of_their_opening(tiny):
    def act() -> None:
        first, second = noisy_outputs(tiny), noisy_outputs(tiny)
        next(first), next(second)
        first.close()  # a close cannot raise what the user could act on: undone all the same
        second.close()

    assert check_restored(tiny, act)


# --- random states ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operators", [["linear"], ["softmax"], None])
def test_dropout_moves_the_random_state_as_far_as_it_does_without_noise(operators):
    model = build("gpt2").train()

    def states(*, inject: bool) -> tuple[str, object, str]:
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        if inject:
            with ns.inject(model, ns.RelativeGaussian(0.05), operators=operators, phases="both"):
                run(model, tokens())
        else:
            run(model, tokens())
        return bits(torch.get_rng_state()), random.getstate(), repr(np.random.get_state())

    assert states(inject=True) == states(inject=False)


# --- buffers ----------------------------------------------------------------------------------------------------


class RunningNorm(nn.Module):
    """A norm that learns its mean while it is trained: a call too many is a change of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(hidden.detach().mean((0, 1)), 0.1)
        return self.weight * (hidden - self.mean)


def test_a_norm_with_a_memory_is_not_moved_by_looking_for_norms():
    model = nn.Sequential(*(nn.Sequential(RunningNorm(), nn.Linear(8, 8)) for _ in range(2)))
    before = digest(model)
    with ns.inject(model, ns.RelativeGaussian(0.05), operators=[]):
        pass
    assert digest(model) == before


# --- able to fail -----------------------------------------------------------------------------------------------


def exit_only_on_success(monkeypatch):
    """The mutant without its `finally`."""
    real = Watch.__exit__

    def mutant(self, kind=None, error=None, trace=None):
        if kind is None:
            real(self, kind, error, trace)

    monkeypatch.setattr(Watch, "__exit__", mutant)


def exit_keeps_the_hooks(monkeypatch):
    real = Watch.__exit__

    def mutant(self, kind=None, error=None, trace=None):
        self._handles.clear()
        real(self, kind, error, trace)

    monkeypatch.setattr(Watch, "__exit__", mutant)


def noise_draws_from_the_global_stream(monkeypatch):
    monkeypatch.setattr(Fails, "disturb_", lambda self, value, scale, key: value.add_(torch.randn(()) * scale))


def noise_reaches_the_weights(monkeypatch):
    real = Showing.operator

    def mutant(self, operator, function, args, kwargs):
        if operator == "linear":
            args[1].data.mul_(1 + 1e-3)
        return real(self, operator, function, args, kwargs)

    monkeypatch.setattr(Showing, "operator", mutant)


MUTANTS = (exit_only_on_success, exit_keeps_the_hooks, noise_draws_from_the_global_stream, noise_reaches_the_weights)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_mutants_are_caught(tiny, monkeypatch, mutant):
    mutant(monkeypatch)
    with quarantine(), pytest.raises(AssertionError):
        check_every_call(tiny, tokens(), phases="both", every=5)
