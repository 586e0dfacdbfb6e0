"""What a softmax may round on its way."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ...injection import by_position
from ..rounding import accumulator_unit, quantile, unit
from .arguments import HostCall
from .rules import register

__all__ = ["Scores", "softmax_spread"]


def softmax_spread(scores: Tensor, weights: Tensor, lam: float, u: float, score_error: Tensor | float = 0.0) -> Tensor:
    """The error of each weight r: r (exp(e + sum r e) - 1) or r (1 - exp(-e) / sum r exp(e)), plus what underflows.

    e = 2u d + (lam sqrt(K) / 2 + 5) u + the error that the scores came with, d = min(|x - max|, 200): exp turns an
    absolute error of its argument into a relative one of its result. If every score is off by e at most, a weight
    grows at most by the first factor (its own score up, all others down; by Jensen's inequality) and shrinks at most
    by the second. To first order both are e + sum r e. The summation, two units in the last place of exp (4u, in the
    weight and in the normaliser) and two roundings to divide make (lam sqrt(K) + 10) u of it.
    """
    distance = (scores - scores.amax(-1, keepdim=True)).abs().nan_to_num(200.0, 200.0, 200.0).clamp(max=200.0)
    error = u * (2 * distance + lam * sqrt(scores.shape[-1]) / 2 + 5) + score_error
    error = torch.as_tensor(error).clamp(max=200.0)
    mean = (weights * error).sum(-1, keepdim=True)
    grown = torch.expm1((error + mean).clamp(max=400.0))
    shrunk = 1 - torch.exp(-error) / (weights * torch.exp(error)).sum(-1, keepdim=True).clamp_min(1.0)
    return weights * grown.maximum(shrunk) + torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Scores:
    """What a softmax is given, as far as its rounding is concerned."""

    rows: Tensor
    """the scores in float64, with the softmax along their last dimension"""
    dim: int
    """which dimension that was"""
    u: float
    """the unit of the arithmetic on the way"""
    cast: Tensor | float
    """the error of the scores if they are cast to a narrower dtype first"""

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Scores":
        """From a call's arguments; a softmax without a dimension takes the last."""
        args, kwargs = by_position(function, args, kwargs)
        given: Tensor = args[0]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        dtype = next((arg for arg in (*args[2:], kwargs.get("dtype")) if isinstance(arg, torch.dtype)), given.dtype)
        rows = given.cpu().double().transpose(-1 if dim is None else dim, -1)
        finite = torch.where(rows.abs() < 1e30, rows.abs(), 0.0)
        cast = unit(dtype) * finite if unit(dtype) > unit(given.dtype) else 0.0
        return cls(rows, -1 if dim is None else int(dim), accumulator_unit(dtype), cast)

    def distance(self) -> Tensor:
        """|x - max|, at most 200."""
        found = (self.rows - self.rows.amax(-1, keepdim=True)).abs()
        return found.nan_to_num(200.0, 200.0, 200.0).clamp(max=200.0)

    def lam(self, alarms: float) -> float:
        """The quantile of its sums."""
        return quantile(self.rows.shape[-1], self.rows.numel() // max(1, self.rows.shape[-1]), alarms)


def _fit(call: HostCall, reference: Tensor, _alarms: float) -> tuple[list[Tensor], Tensor, int]:
    """With the row's own normaliser: what is left are u (2d + 6) r, the roundings of a single weight.

    Two units in the last place of exp are 4u; the product with a reciprocal is one more, the constant that turns
    exp into exp2 another. A cast of the scores to a narrower dtype moves each weight by itself.
    """
    scores = Scores.of(call.function, call.args, call.kwargs)
    error = scores.u * (2 * scores.distance() + 6) + torch.expm1(torch.as_tensor(scores.cast))
    return [reference], reference * error.transpose(scores.dim, -1) + torch.finfo(torch.float32).tiny, scores.dim


@register("softmax", "softmax", fit=_fit)
def _softmax(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    scores = Scores.of(call.function, call.args, call.kwargs)
    value = reference.transpose(scores.dim, -1)
    found = softmax_spread(scores.rows, value, scores.lam(alarms), scores.u, scores.cast)
    return found.transpose(scores.dim, -1)


@register("log of softmax", "log_softmax")
def _log_softmax(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """u (4|r| + lam sqrt(K) + 4): the scores' rounding, and that of the logarithm of a sum."""
    scores = Scores.of(call.function, call.args, call.kwargs)
    rounded = scores.u * (4 * reference.abs() + scores.lam(alarms) * sqrt(scores.rows.shape[-1]) + 4)
    return rounded + 2 * torch.as_tensor(scores.cast).amax()
