"""What a softmax may round on its way."""

from math import sqrt

import torch
from torch import Tensor

from ..rounding import accumulator_unit, quantile
from .arguments import HostCall
from .rules import register

__all__ = ["softmax_spread"]


def softmax_spread(scores: Tensor, weights: Tensor, lam: float, u: float, score_error: Tensor | float = 0.0) -> Tensor:
    """The error of each weight r: r (e + sum r e + (lam sqrt(K) + 10) u), plus what underflows.

    e = 2u d + the error that the scores came with, d = min(|x - max|, 200): exp turns an absolute error of its argument
    into a relative one of its result. The second term is the same in the normaliser, the third its summation; two
    units in the last place of exp are 4u, in the weight and in the normaliser, and two roundings divide.
    """
    distance = (scores - scores.amax(-1, keepdim=True)).abs().nan_to_num(200.0, 200.0, 200.0).clamp(max=200.0)
    error = 2 * u * distance + score_error
    mean = (weights * error).sum(-1, keepdim=True)
    return weights * (error + mean + (lam * sqrt(scores.shape[-1]) + 10) * u) + torch.finfo(torch.float32).tiny


def _rows(call: HostCall) -> tuple[Tensor, int]:
    """The scores in float64 with the softmax along their last dimension, and which dimension that was."""
    given = dict(zip(("input", "dim"), call.args, strict=False)) | call.kwargs
    dim = given.get("dim", -1)
    dim = -1 if dim is None else int(dim)
    scores: Tensor = given["input"].double()
    return scores.transpose(dim, -1), dim


def _fit(call: HostCall, reference: Tensor, _alarms: float) -> tuple[list[Tensor], Tensor, int]:
    """With the row's own normaliser: what is left are u (2d + 6) r, the roundings of a single weight.

    Two units in the last place of exp are 4u; the product with a reciprocal is one more, the constant that turns
    exp into exp2 another.
    """
    scores, dim = _rows(call)
    u = accumulator_unit(scores_dtype(call))
    distance = (scores - scores.amax(-1, keepdim=True)).abs().nan_to_num(200.0, 200.0, 200.0).clamp(max=200.0)
    spread = reference * u * (2 * distance.transpose(dim, -1) + 6) + torch.finfo(torch.float32).tiny
    return [reference], spread, dim


def scores_dtype(call: HostCall) -> torch.dtype:
    """The dtype of the scores."""
    found: Tensor = call.args[0] if call.args else call.kwargs["input"]
    return found.dtype


@register("softmax", "softmax", fit=_fit)
def _softmax(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    scores, dim = _rows(call)
    lam = quantile(scores.shape[-1], scores.numel() // max(1, scores.shape[-1]), alarms)
    value = reference.transpose(dim, -1)
    return softmax_spread(scores, value, lam, accumulator_unit(scores_dtype(call))).transpose(dim, -1)


@register("log of softmax", "log_softmax")
def _log_softmax(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """u (4|r| + lam sqrt(K) + 4): the scores' rounding, and that of the logarithm of a sum."""
    scores, _ = _rows(call)
    lam = quantile(scores.shape[-1], scores.numel() // max(1, scores.shape[-1]), alarms)
    u = accumulator_unit(scores_dtype(call))
    return u * (4 * reference.abs() + lam * sqrt(scores.shape[-1]) + 4)
