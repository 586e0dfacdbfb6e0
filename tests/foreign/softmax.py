"""Softmax by other ways to compute an exponential and a sum."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from noisescope.devices.functions import LOG2E, fma, ulps_off

from .device import Arithmetic, Given, Variant, wide

__all__ = ["SOFTMAXES"]


Sum: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""scores, weights -> the sum of the weights"""


def _softmax(weigh: Callable[[Tensor], Tensor], total: Sum, *, divides: bool) -> Callable[[], Arithmetic]:
    def compute(given: Given) -> Tensor | None:
        named = given.named("input", "dim")
        x, dim = named["input"], named.get("dim")
        if named.get("dtype") is not None:
            x = x.to(named["dtype"])
        if dim is None:
            return None
        x = wide(x).movedim(dim, -1)
        weights = weigh(x)
        sums = total(x, weights)
        return (weights / sums if divides else weights * (1 / sums)).movedim(-1, dim)

    return lambda: compute


def _plain(_x: Tensor, weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True)


def _online(x: Tensor, _weights: Tensor) -> Tensor:
    """With a running maximum, over blocks of four: what was summed is rescaled each time that the maximum grows."""
    most = torch.full_like(x[..., :1], -torch.inf)
    total = torch.zeros_like(most)
    for start in range(0, x.shape[-1], 4):
        some = x[..., start : start + 4]
        now = torch.maximum(most, some.amax(-1, keepdim=True))
        held = torch.where(now == -torch.inf, 0.0, now)
        total = total * torch.exp(most - held) + torch.exp(some - held).sum(-1, keepdim=True)
        most = now
    return total


def _by_exp(x: Tensor) -> Tensor:
    return torch.exp(x - x.amax(-1, keepdim=True))


def _by_exp2(x: Tensor) -> Tensor:
    return torch.exp2((x - x.amax(-1, keepdim=True)) * LOG2E)


def _by_fused_exp2(x: Tensor) -> Tensor:
    """x log2(e) - (max log2(e), rounded), with one rounding; rows of nothing but masks are left to the plain form."""
    held = x.amax(-1, keepdim=True) * LOG2E
    return torch.where(held.isfinite(), torch.exp2(fma(x, LOG2E, -held)), _by_exp2(x))


def _two_ulps_off(x: Tensor) -> Tensor:
    return ulps_off((x - x.amax(-1, keepdim=True)).double().exp(), x.dtype)


def _row(name: str, weigh: Callable[[Tensor], Tensor], total: Sum = _plain, *, divides: bool = False) -> Variant:
    return Variant(name, ("softmax",), _softmax(weigh, total, divides=divides), ("softmax",))


SOFTMAXES = (
    _row("softmax by exp2", _by_exp2, divides=True),
    _row("softmax by fused exp2", _by_fused_exp2),
    _row("softmax, exp two ulps off", _two_ulps_off),
    _row("softmax online", _by_exp, _online),
)
