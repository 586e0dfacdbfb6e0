"""Activations, quotients, roots and angles by other formulas."""

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor

from noisescope.devices.functions import GELU_BY_TANH, LOG2E, gelu_argument, ulps_off

from .device import Arithmetic, Given, Variant, wide

__all__ = ["ELEMENTWISE"]


def _of_x(function: Callable[[Tensor], Tensor]) -> Callable[[], Arithmetic]:
    """A function of one tensor."""
    return lambda: lambda given: function(wide(given.named("input")["input"]))


def _silu_by_tanh(x: Tensor) -> Tensor:
    half = x * 0.5
    return half * torch.tanh(half) + half


def _silu_by_tanh_factored(x: Tensor) -> Tensor:
    return x * (0.5 * (1 + torch.tanh(x * 0.5)))


def _silu_by_exp2(x: Tensor) -> Tensor:
    return x / (1 + torch.exp2(x * -LOG2E))


def _silu_by_reciprocal(x: Tensor) -> Tensor:
    return x * (1 / (1 + torch.exp(-x)))


def _gelu(by_erf: Callable[[Tensor], Tensor], by_tanh: Callable[[Tensor], Tensor]) -> Callable[[], Arithmetic]:
    def compute(given: Given) -> Tensor | None:
        named = given.named("input")
        if given.name.startswith("module"):
            if type(given.call.module).__name__ not in GELU_BY_TANH:
                return None
            return by_tanh(wide(next(iter((*given.call.args, *given.call.kwargs.values())))))
        form = by_tanh if named.get("approximate", "none") == "tanh" else by_erf
        return form(wide(named["input"]))

    return lambda: compute


def _erf(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * sqrt(0.5)))


def _erfc(x: Tensor) -> Tensor:
    return 0.5 * x * torch.erfc(x * -sqrt(0.5))


def _tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(gelu_argument(x)))


def _sigmoid(x: Tensor) -> Tensor:
    """x sigmoid(2 y), which is x/2 (1 + tanh y)."""
    return x / (1 + torch.exp2(-2 * LOG2E * gelu_argument(x)))


def _divided(given: Given) -> Tensor | None:
    if getattr(given.call.function, "__name__", "") in ("__rdiv__", "__rtruediv__"):
        return None
    named = given.named("input", "other")
    a, b = named["input"], named["other"]
    if named.get("rounding_mode") is not None or not isinstance(a, Tensor):
        return None
    b = b if isinstance(b, Tensor) else torch.tensor(float(b))
    return wide(a) * (1 / wide(b))


def _reduced(x: Tensor) -> Tensor:
    """The angle within one turn, rounded once."""
    return (x.double() - torch.round(x.double() / (2 * pi)) * 2 * pi).to(x.dtype)


def _angle(function: Callable[[Tensor], Tensor]) -> Callable[[Given], Tensor]:
    return lambda given: function(_reduced(wide(given.named("input")["input"])))


def _two_ulps_off() -> Arithmetic:
    def compute(given: Given) -> Tensor | None:
        if given.name.startswith("module"):
            return None
        args = tuple(arg.double() if isinstance(arg, Tensor) else arg for arg in given.call.args)
        return ulps_off(given.call.function(*args, **given.call.kwargs), wide(given.value).dtype)

    return compute


_TRANSCENDENTAL = ("exp", "exp2", "tanh", "sigmoid", "silu", "gelu", "sin", "cos", "rsqrt", "sqrt", "erf", "softplus")

ELEMENTWISE = (
    Variant("silu by tanh", ("silu",), _of_x(_silu_by_tanh), ("silu",)),
    Variant("silu by tanh, factored", ("silu",), _of_x(_silu_by_tanh_factored), ("silu",)),
    Variant("silu by exp2", ("silu",), _of_x(_silu_by_exp2), ("silu",)),
    Variant("silu by reciprocal", ("silu",), _of_x(_silu_by_reciprocal), ("silu",)),
    Variant("gelu written out", ("gelu", "module gelu"), _gelu(_erf, _tanh), ("gelu",)),
    Variant("gelu by erfc and sigmoid", ("gelu", "module gelu"), _gelu(_erfc, _sigmoid), ("gelu",)),
    Variant("rsqrt by sqrt", ("rsqrt",), _of_x(lambda x: 1 / x.sqrt()), ("rsqrt",)),
    Variant("div by reciprocal", ("div",), lambda: _divided, ("div",)),
    Variant("sin by one reduction", ("sin",), lambda: _angle(torch.sin), ("sin",)),
    Variant("cos by one reduction", ("cos",), lambda: _angle(torch.cos), ("cos",)),
    Variant("two ulps off", _TRANSCENDENTAL, _two_ulps_off, ("silu",)),
)
