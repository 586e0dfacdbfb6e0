"""What an identity is, the registry of all, and how one is checked.

A bit-exact identity that fails within the rounding bound may be a device that sums in another order every time, which
is healthy. So it is asked again: only if the call and the probe both give the same bits eight times more, and still
disagree, is it evidence.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...errors import InputError
from ...injection import Call
from ...injection.recognising import is_fresh
from ..device import Device

__all__ = ["IDENTITIES", "Failure", "Identity", "Probe", "check_identities", "laid_out_like", "register"]

_ALIGNED = 64
"""bytes; torch's own memory starts at multiples of it"""
AGAIN = 8
"""how often a disagreement within rounding is looked at again"""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call and the device it was made on. `args` and `value` are the device's own tensors."""

    call: Call
    value: Tensor
    device: Device
    alarms: float

    @property
    def args(self) -> tuple[Any, ...]:
        """The call's positional arguments."""
        return self.call.args

    def again(self, *args: Any) -> Tensor:
        """The device's value for other positional arguments."""
        found: Tensor = self.device.run(self.call.ask, *args, **self.call.kwargs)
        return found

    def other(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """What the device gives for another operator."""
        found: Tensor = self.device.run(function, *args, **kwargs)
        return found


@dataclass(frozen=True)
class Expectation:
    """Two values that a healthy device makes equal, or equal up to a bound."""

    got: Tensor
    expected: Tensor
    bound: Callable[[], Tensor] | None = None
    """computed only where bits differ; None for bit by bit"""
    floor: float = 0.0
    """errors below this are underflow: a scaled probe loses other digits than the call"""

    def off(self) -> tuple[int, float]:
        """How many elements disagree, and the largest error in units of the bound (infinite for bits)."""
        got, expected = self.got.cpu(), self.expected.cpu()
        if torch.equal(got, expected):
            return 0, 0.0
        same = (got == expected) | (got.isnan() & expected.isnan())
        error = (got.double() - expected.double()).abs().nan_to_num(torch.inf)
        if self.bound is None:
            wrong = ~same & (error > self.floor)
            return int(wrong.sum()), float("inf") if bool(wrong.any()) else 0.0
        ratio = torch.where(same, 0.0, error / (self.bound().cpu().double() + self.floor))
        return int((ratio > 1).sum()), float(ratio.max()) if ratio.numel() else 0.0


Check: TypeAlias = Callable[[Probe], Expectation | None]
"""None where the identity says nothing about this call"""


@dataclass(frozen=True)
class Identity:
    """One row."""

    name: str
    operators: tuple[str, ...]
    check: Check
    exact: bool
    """bit for bit: holds only where the device computes the same twice, unless it is `order_free`"""
    blind_to: tuple[str, ...]
    """kinds of faults that obey it"""
    cost: float
    """calls of the operator that it makes"""
    order_free: bool = False
    """bit for bit in whichever order a device sums, so also where it never sums twice alike"""


@dataclass(frozen=True)
class Failure:
    """An identity that the device does not obey."""

    identity: str
    elements: int
    bad: int
    ratio: float
    shown: Expectation | None = None
    """what came and what was due, where the identity says both bit by bit"""


IDENTITIES: list[Identity] = []


def register(
    name: str,
    *operators: str,
    exact: bool,
    blind_to: tuple[str, ...] = (),
    cost: float = 1.0,
    order_free: bool = False,
) -> Callable[[Check], Check]:
    """A decorator: the function checks that identity at these operators."""

    def add(check: Check) -> Check:
        taken = {(row.name, operator) for row in IDENTITIES for operator in row.operators}
        if again := [operator for operator in operators if (name, operator) in taken]:
            raise InputError(f'identity "{name}" is registered already for {again[0]}')
        IDENTITIES.append(Identity(name, operators, check, exact, blind_to, cost, order_free))
        return check

    return add


def laid_out_like(values: Tensor, like: Tensor) -> Tensor:
    """The values on the device of `like`, in memory as that lies there.

    Strides and alignment decide which kernel runs and in which order it sums, and so does, for `matmul`, whether an
    operand requires a gradient; a probe must have those of the call. Where elements of `like` share their memory, the
    values are shared too if they can be.
    """
    values = values.to(like.device)
    if values.shape != like.shape or values.dtype != like.dtype:
        return values
    shared = [dim for dim, stride in enumerate(like.stride()) if stride == 0]
    single = values
    for dim in shared:
        single = single.narrow(dim, 0, 1)
    if shared and not bool((single == values).all()):
        return values
    lies_so = values.stride() == like.stride() and not (values.data_ptr() - like.data_ptr()) % _ALIGNED
    if lies_so and not shared and values.requires_grad == like.requires_grad and is_fresh(values, (like,), {}):
        return values
    skip = like.data_ptr() % _ALIGNED // like.element_size()
    span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    memory = torch.empty(skip + span, dtype=like.dtype, device=like.device)
    memory.as_strided(single.shape, like.stride(), skip).copy_(single)
    return memory.as_strided(like.shape, like.stride(), skip).requires_grad_(like.requires_grad)


def rows_of(operator: str) -> Iterator[Identity]:
    """The identities of an operator."""
    return (row for row in IDENTITIES if operator in row.operators)


@dataclass
class Answers:
    """What a call's identities said."""

    asked: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """those whose probe the device's kernel would not compute"""
    calls: float = 0.0
    """of the operator, that the answers took"""


def check_identities(probe: Probe, *, repeats: bool) -> Answers:
    """Asks for all identities of a call; `repeats`: the device gave the same bits twice."""
    answers = Answers()
    for row in rows_of(probe.call.operator):
        if row.exact and not repeats and not row.order_free:
            continue
        try:
            found = row.check(probe)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            answers.refused.append(row.name)
            continue
        if found is None:
            continue
        answers.asked.append(row.name)
        answers.calls += row.cost
        bad, ratio = found.off()
        if bad and row.exact and not row.order_free:
            answers.calls += AGAIN * (1 + row.cost)
        if bad and (row.order_free or not row.exact or _is_stable(probe, row, found)):
            answers.failed.append(Failure(row.name, found.got.numel(), bad, ratio, found if row.exact else None))
    return answers


def _is_stable(probe: Probe, row: Identity, found: Expectation) -> bool:
    """Whether the call gives the same bits again and again, and the probe the same disagreement on both its sides."""
    for _ in range(AGAIN):
        value = probe.device.run(probe.call.again)
        if not same_bits(value, probe.value):
            return False
        again = row.check(probe)
        if again is None or not same_bits(again.got, found.got) or not same_bits(again.expected, found.expected):
            return False
    return True


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors hold the same numbers; a NaN is like another."""
    a, b = a.cpu(), b.cpu()
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()))
