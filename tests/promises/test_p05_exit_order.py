"""P5: an injection closed out of order, twice, or on another thread raises, and everything is restored all the same."""

import threading
from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
from digests import bits, digest, quarantine
from torch import nn
from torch.overrides import BaseTorchFunctionMode, _pop_mode

import noisescope as ns
from families import tokens
from noisescope.errors import ExitOrder
from noisescope.injection import Injection, Watch, watching

PLACES = ({"layers": [0]}, {"layers": [1], "operators": "linear"}, {"operators": ["softmax", "rms_norm"]})


def injections(model: nn.Module, number: int) -> list[Injection]:
    noises = (ns.RelativeGaussian(0.05), ns.Uniform(0.05), ns.AbsoluteGaussian(0.05))
    return [
        ns.inject(model, noise, seed=seed, phases="both", **where)
        for seed, (noise, where) in enumerate(zip(noises, PLACES, strict=True))
    ][:number]


def outputs(model: nn.Module) -> list[str]:
    """Bits of logits and gradients."""
    logits = model(**tokens(), use_cache=False).logits
    return [bits(logits), *map(bits, torch.autograd.grad(logits.square().mean(), list(model.parameters())))]


def close(injection: Injection) -> ExitOrder | None:
    """Closes it as a `with` block would that ended well; what it raised."""
    try:
        injection.__exit__(None, None, None)
    except ExitOrder as error:
        return error
    return None


def check_any_order(model: nn.Module, order: Sequence[int]) -> None:
    """Opened 0, 1, 2 ... and closed in this order: each that is not the innermost raises; then nothing is left."""
    clean, before = outputs(model), digest(model)
    opened = injections(model, len(order))
    for injection in opened:
        injection.__enter__()
    noisy = outputs(model)
    assert noisy != clean
    for left, number in zip(range(len(order), 0, -1), order, strict=True):
        innermost = max(order[len(order) - left :])
        error = close(opened[number])
        assert (error is not None) == (number != innermost), f"closing {number} in {order}"
        assert error is None or ("\n" not in str(error) and error.exit_code == 1)
        if left > 1:
            assert outputs(model) not in (clean, noisy)  # the others go on
    assert digest(model) == before
    assert outputs(model) == clean


@pytest.mark.parametrize("order", [*permutations(range(2)), *permutations(range(3))], ids=str)
def test_any_order_of_closing(tiny, order):
    check_any_order(tiny, order)


def test_those_still_open_work_as_if_alone(tiny):
    with ns.inject(tiny, ns.Uniform(0.05), layers=[1], seed=5):
        alone = [outputs(tiny), outputs(tiny)]
    outer = ns.inject(tiny, ns.RelativeGaussian(0.05), layers=[0])
    inner = ns.inject(tiny, ns.Uniform(0.05), layers=[1], seed=5)
    outer.__enter__(), inner.__enter__()
    both = outputs(tiny)
    assert isinstance(close(outer), ExitOrder)
    assert both != alone[0]
    assert outputs(tiny) == alone[1]
    assert close(inner) is None


def test_an_error_in_flight_is_not_replaced(tiny):
    before = digest(tiny)
    outer, inner = injections(tiny, 2)

    def fail() -> None:
        with outer:
            inner.__enter__()
            outputs(tiny)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert close(inner) is None
    assert digest(tiny) == before


def test_a_mode_of_the_users_own_in_between(tiny):
    class Mine(BaseTorchFunctionMode):
        """Of the user's own."""

    before = digest(tiny)
    (injection,) = injections(tiny, 1)
    injection.__enter__()
    with Mine():
        assert isinstance(close(injection), ExitOrder)
    assert digest(tiny) == before
    with Mine(), injection, Mine():
        outputs(tiny)
    with Mine():
        inside = digest(tiny)
        with injection:
            outputs(tiny)
        assert digest(tiny) == inside
    assert digest(tiny) == before


def test_a_default_device_set_inside_stays_and_is_no_mistake_of_order(tiny):
    before = digest(tiny)
    try:
        with ns.inject(tiny, ns.RelativeGaussian(0.05)):
            torch.set_default_device("cpu")
            outputs(tiny)
    finally:
        torch.set_default_device(None)
    assert digest(tiny) == before


# --- twice, or never --------------------------------------------------------------------------------------------


def test_opening_twice_is_refused_and_the_first_goes_on(tiny):
    clean, before = outputs(tiny), digest(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05)) as injection:
        with pytest.raises(ExitOrder, match="open already"):
            injection.__enter__()
        assert outputs(tiny) != clean
    assert digest(tiny) == before
    assert outputs(tiny) == clean


def test_closing_twice_is_refused(tiny):
    before = digest(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05)) as injection:
        outputs(tiny)
    with pytest.raises(ExitOrder, match="not open"):
        injection.__exit__(None, None, None)
    assert digest(tiny) == before


def test_closing_what_was_never_opened_is_refused(tiny):
    before = digest(tiny)
    with pytest.raises(ExitOrder, match="not open"):
        ns.inject(tiny, ns.RelativeGaussian(0.05)).__exit__(None, None, None)
    assert digest(tiny) == before


def test_opening_again_after_closing_works(tiny):
    clean, before = outputs(tiny), digest(tiny)
    injection = ns.inject(tiny, ns.RelativeGaussian(0.05))
    for _ in range(2):
        with injection:
            assert outputs(tiny) != clean
        assert digest(tiny) == before


# --- another thread ---------------------------------------------------------------------------------------------


def close_elsewhere(injection: Injection) -> ExitOrder | None:
    found = []
    thread = threading.Thread(target=lambda: found.append(close(injection)))
    thread.start(), thread.join()
    return found[0]


def check_closed_elsewhere(model: nn.Module) -> None:
    """Closed on another thread: raises there, has no effect here at once, and nothing is left when the next opens."""
    clean, before = outputs(model), digest(model)
    first, second = injections(model, 2)
    first.__enter__()
    noisy = outputs(model)
    assert noisy != clean
    error = close_elsewhere(first)
    assert error is not None
    assert "thread" in str(error)
    assert outputs(model) == clean
    with second:
        assert outputs(model) != clean
    assert digest(model) == before


def test_closed_on_another_thread(tiny):
    check_closed_elsewhere(tiny)


def test_an_outer_injection_is_not_blamed_for_an_inner_one_closed_elsewhere(tiny):
    before = digest(tiny)
    outer, inner = injections(tiny, 2)
    with outer:
        inner.__enter__()
        outputs(tiny)
        assert isinstance(close_elsewhere(inner), ExitOrder)
        outputs(tiny)
    assert digest(tiny) == before


def test_closed_on_another_thread_and_again_at_home(tiny):
    before = digest(tiny)
    (injection,) = injections(tiny, 1)
    injection.__enter__()
    assert isinstance(close_elsewhere(injection), ExitOrder)
    assert isinstance(close(injection), ExitOrder)
    assert digest(tiny) == before


def test_closed_on_another_thread_and_opened_again(tiny):
    clean, before = outputs(tiny), digest(tiny)
    (injection,) = injections(tiny, 1)
    injection.__enter__()
    assert isinstance(close_elsewhere(injection), ExitOrder)
    with injection:
        assert outputs(tiny) != clean
    assert digest(tiny) == before


# --- able to fail -----------------------------------------------------------------------------------------------


def pops_whatever_is_on_top(monkeypatch):
    """What torch's own modes do: two that are closed out of order pop each other, silently."""

    def mutant(self, kind=None, error=None, trace=None):
        self.active = False
        while self._handles:
            self._handles.pop().remove()
        _pop_mode()

    monkeypatch.setattr(Watch, "__exit__", mutant)


def says_nothing(monkeypatch):
    real = Watch.__exit__

    def mutant(self, kind=None, error=None, trace=None):
        real(self, KeyError, error, trace)

    monkeypatch.setattr(Watch, "__exit__", mutant)


def raises_before_it_restores(monkeypatch):
    real = Watch.__exit__

    def mutant(self, kind=None, error=None, trace=None):
        if watching.mode_stack()[-1] is not self._mode:
            raise ExitOrder("closed out of order")
        real(self, kind, error, trace)

    monkeypatch.setattr(Watch, "__exit__", mutant)


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 2)], ids=str)
@pytest.mark.parametrize("mutant", [pops_whatever_is_on_top, says_nothing, raises_before_it_restores])
def test_the_mutants_are_caught(tiny, monkeypatch, mutant, order):
    mutant(monkeypatch)
    with quarantine(), pytest.raises(AssertionError):
        check_any_order(tiny, order)


def test_a_mutant_that_keeps_dead_modes_is_caught(tiny, monkeypatch):
    monkeypatch.setattr(watching, "_sweep", lambda unless=None: None)
    with quarantine(), pytest.raises(AssertionError):
        check_closed_elsewhere(tiny)
