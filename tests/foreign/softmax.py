"""Softmax by other ways to compute an exponential and a sum."""

from collections.abc import Callable
from math import log2
from math import e as euler

import torch
from torch import Tensor

from .device import Arithmetic, Given, Variant, wide

__all__ = ["LOG2E", "SOFTMAXES", "fma", "ulps_off"]

LOG2E = log2(euler)


def fma(a: Tensor, b: float | Tensor, c: Tensor) -> Tensor:
    """a b + c with one rounding."""
    return (a.double() * (b.double() if isinstance(b, Tensor) else _rounded(b, a)) + c.double()).to(a.dtype)


def _rounded(constant: float, like: Tensor) -> float:
    return float(torch.tensor(constant, dtype=like.dtype))


def ulps_off(value: Tensor, ulps: float = 2.0) -> Tensor:
    """The value off by so many units in the last place, up or down by its own mantissa, so always alike.

    Vendors promise 1 to 2 units for exp, tanh, erf, sin and rsqrt.
    """
    mantissa, exponent = torch.frexp(value)
    eps = torch.finfo(value.dtype).eps
    up = torch.remainder(torch.floor(mantissa.abs() / (8 * eps)), 2) * 2 - 1
    return torch.where(
        value.isfinite() & (value != 0),
        value + up * ulps * torch.ldexp(torch.full_like(value, eps), exponent - 1),
        value,
    )


def _softmax(weigh: Callable[[Tensor], Tensor], divide: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Arithmetic]:
    def compute(given: Given) -> Tensor | None:
        named = given.named("input", "dim")
        x, dim = named["input"], named.get("dim")
        if named.get("dtype") is not None:
            x = x.to(named["dtype"])
        if dim is None:
            return None
        weights = weigh(wide(x).movedim(dim, -1))
        return divide(weights, weights.sum(-1, keepdim=True)).movedim(-1, dim)

    return lambda: compute


def _by_exp2(x: Tensor) -> Tensor:
    return torch.exp2((x - x.amax(-1, keepdim=True)) * LOG2E)


def _by_fused_exp2(x: Tensor) -> Tensor:
    """x log2(e) - (max log2(e), rounded), with one rounding; rows whose maximum is a mask's are left to the plain form."""
    held = x.amax(-1, keepdim=True) * LOG2E
    return torch.where(held.isfinite(), torch.exp2(fma(x, LOG2E, -held)), _by_exp2(x))


def _two_ulps_off(x: Tensor) -> Tensor:
    return ulps_off(torch.exp(x - x.amax(-1, keepdim=True)))


def _online(x: Tensor) -> Tensor:
    """Running maximum over blocks of four: every weight is rescaled each time that it grows."""
    most = torch.full_like(x[..., :1], -torch.inf)
    weights = torch.zeros_like(x)
    for start in range(0, x.shape[-1], 4):
        some = x[..., start : start + 4]
        now = torch.maximum(most, some.amax(-1, keepdim=True))
        held = torch.where(now == -torch.inf, 0.0, now)
        weights = weights * torch.exp(most - held)
        weights[..., start : start + 4] = torch.exp(some - held)
        most = now
    return weights


def _by_division(weights: Tensor, total: Tensor) -> Tensor:
    return weights / total


def _by_reciprocal(weights: Tensor, total: Tensor) -> Tensor:
    return weights * (1 / total)


SOFTMAXES = (
    Variant("softmax by exp2", ("softmax",), _softmax(_by_exp2, _by_division), ("softmax",)),
    Variant("softmax by fused exp2", ("softmax",), _softmax(_by_fused_exp2, _by_reciprocal), ("softmax",)),
    Variant("softmax, exp two ulps off", ("softmax",), _softmax(_two_ulps_off, _by_reciprocal), ("softmax",)),
    Variant("softmax online", ("softmax",), _softmax(_online, _by_reciprocal), ("softmax",)),
)
