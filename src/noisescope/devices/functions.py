"""Devices with other exponentials, roots and angles."""

from collections.abc import Callable
from functools import partial
from math import log, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..faults.computing import exp_by_table, softmax_by
from ..faults.wide import widened
from .given import Given
from .rows import Device, register

__all__ = ["GELU_BY_TANH", "LOG2E", "STEP", "fma", "gelu_argument", "ulps_off"]

STEP = 2**-4
"""how far apart the entries of the table are"""
LOG2E = 1 / log(2)
GELU_BY_TANH = ("NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation", "BloomGelu")
"""hand-written modules that are gelu by tanh"""


def gelu_argument(x: Tensor) -> Tensor:
    """What gelu takes the tanh of."""
    return sqrt(2 / pi) * (x + 0.044715 * x * x * x)


def fma(a: Tensor, b: float | Tensor, c: Tensor) -> Tensor:
    """a b + c with one rounding."""
    factor = b.double() if isinstance(b, Tensor) else float(torch.tensor(b, dtype=a.dtype))
    return (a.double() * factor + c.double()).to(a.dtype)


def ulps_off(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 value as a function gives it that is off by up to two units in the last place, always alike.

    That is what vendors promise of exp, tanh, erf, sin and rsqrt. Up or down is told by the value's own mantissa; one
    and a half units are added before the rounding, which adds the rest.
    """
    mantissa, exponent = torch.frexp(exact)
    ulp = torch.finfo(dtype).eps
    up = torch.remainder(torch.floor(mantissa.abs() / (8 * ulp)), 2) * 2 - 1
    moved = exact + up * 1.5 * torch.ldexp(torch.full_like(exact, ulp), exponent - 1)
    return torch.where(exact.isfinite() & (exact != 0), moved, exact).to(dtype)


def _softmax(given: Given, exp: Callable[[Tensor], Tensor]) -> Tensor | None:
    def function(*args: Any, **kwargs: Any) -> Tensor | None:
        try:
            return softmax_by(exp, args, kwargs)
        except InputError:  # torch guesses the dimension
            return None

    return given.widely(function)


# --- from a table -----------------------------------------------------------------------------------------------

_table = partial(exp_by_table, step=STEP)


def _logistic(x: Tensor, argument: Tensor) -> Tensor:
    """x / (1 + exp(-argument)); exp is looked up where it is at most 1."""
    small = _table(-argument.abs())
    return x * torch.where(argument < 0, small, torch.ones_like(small)) / (1 + small)


def _exp_table(given: Given) -> Tensor | None:
    if given.name == "softmax":
        return _softmax(given, _table)
    first = next(iter((*given.call.args, *given.call.kwargs.values())))
    x: Tensor = widened(first)
    if not x.is_floating_point() or not _is_exponential(given):
        return None
    if given.name == "exp":
        return _table(x)
    argument = 2 * gelu_argument(x) if "gelu" in given.name else x
    return _logistic(torch.ones_like(x) if given.name == "sigmoid" else x, argument)


def _is_exponential(given: Given) -> bool:
    """False for a gelu by erf, which has no exponential in it."""
    if given.name == "module gelu":
        return type(given.call.module).__name__ in GELU_BY_TANH
    return given.name != "gelu" or given.call.kwargs.get("approximate", "none") == "tanh"


# --- two units off ----------------------------------------------------------------------------------------------

_TRANSCENDENTAL = ("exp", "exp2", "tanh", "sigmoid", "silu", "gelu", "sin", "cos", "rsqrt", "sqrt", "erf", "softplus")


def _two_ulps_off(given: Given) -> Tensor | None:
    if given.name == "softmax":
        return _softmax(given, lambda x: ulps_off(x.double().exp(), x.dtype))
    args = tuple(arg.double() if isinstance(arg, Tensor) else arg for arg in given.call.args)
    kwargs = {name: arg.double() if isinstance(arg, Tensor) else arg for name, arg in given.call.kwargs.items()}
    kwargs.pop("out", None)
    return ulps_off(given.call.function(*args, **kwargs), widened(given.value).dtype)


register(
    Device(
        "exp_table",
        f"Exponentials come from the nearest entry of a table of step 1/{round(1 / STEP)}, also inside activations.",
        ("softmax", "exp", "sigmoid", "silu", "gelu", "module gelu"),
        lambda _dice: _exp_table,
        honest=False,
    )
)
register(
    Device(
        "approximate_functions",
        "Exponentials, roots and angles are off by up to two units in the last place of float32, as vendors promise.",
        ("softmax", *_TRANSCENDENTAL),
        lambda _dice: _two_ulps_off,
        honest=True,
    )
)
