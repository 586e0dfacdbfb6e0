"""The check for authors of faults: passed by every row of the registry, and failed by rows that break a rule."""

from dataclasses import replace

import pytest
import torch

from noisescope.errors import InputError
from noisescope.faults import FAULTS, Kind, Struck, register
from noisescope.testing import check_fault

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FAULTS)
def test_every_kind_conforms(name, dtype):
    check_fault(FAULTS[name], dtype=dtype)


def moves_global_dice(h: Struck):
    return h.value + torch.randn(h.value.shape)


def has_dice_in_secret(h: Struck):
    return h.value + torch.randn(h.value.shape, generator=h.generator)


def does_nothing(h: Struck):
    return h.value.clone()


def is_worse_when_weak(h: Struck):
    return h.value * (1 + 1 / h.magnitude)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (moves_global_dice, "moves torch's global generator"),
        (has_dice_in_secret, "says stochastic=False and is not"),
        (does_nothing, "changes nothing at its documented magnitude"),
        (is_worse_when_weak, "does more harm where it is weak"),
    ],
)
def test_a_row_that_breaks_a_rule_is_told_which(monkeypatch, act, says):
    kind = Kind("odd", 0.1, act)
    monkeypatch.setitem(FAULTS, "odd", kind)
    with pytest.raises(AssertionError, match=says):
        check_fault(kind)


def test_one_that_computes_is_told_too(monkeypatch):
    def widens(function, args, kwargs, magnitude):
        return function(*args, **kwargs) * (1 + magnitude)

    kind = Kind("odd", 0.1, recompute=widens, operators=("silu", "softmax"))
    monkeypatch.setitem(FAULTS, "odd", kind)
    check_fault(kind)
    monkeypatch.setitem(FAULTS, "odd", dead := replace(kind, stochastic=True))
    with pytest.raises(AssertionError, match="says stochastic=True"):
        check_fault(dead)


def test_a_row_that_nobody_registered():
    with pytest.raises(AssertionError, match="not registered"):
        check_fault(Kind("odd", 0.1, does_nothing))


def test_a_name_is_taken_once_and_a_row_says_how():
    with pytest.raises(InputError, match='fault "gain" is registered already'):
        register(FAULTS["gain"])
    with pytest.raises(InputError, match="either act or recompute"):
        register(Kind("odd", 0.1))
