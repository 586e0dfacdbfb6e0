"""What a softmax may round on its way."""

import torch
from torch import Tensor

from ..rounding import accumulator_unit, quantile
from .arguments import HostCall
from .rules import register

__all__ = ["softmax_spread"]


def softmax_spread(scores: Tensor, weights: Tensor, lam: float, u: float, score_error: Tensor | float = 0.0) -> Tensor:
    """The error of each weight r: r (e + sum r e + (lam sqrt(K) + 4) u), plus what underflows.

    e = u d + the error that the scores came with, d = min(|x - max|, 200): exp turns an absolute error of its argument
    into a relative one of its result. The second term is the same in the normaliser, the third its summation.
    """
    distance = (scores - scores.amax(-1, keepdim=True)).abs().nan_to_num(200.0, 200.0, 200.0).clamp(max=200.0)
    error = 2 * u * distance + score_error
    mean = (weights * error).sum(-1, keepdim=True)
    return weights * (error + mean + (lam * scores.shape[-1] ** 0.5 + 4) * u) + torch.finfo(torch.float32).tiny


@register("softmax", "softmax", "log_softmax")
def _softmax(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    given = dict(zip(("input", "dim"), call.args, strict=False)) | call.kwargs
    x: Tensor = given["input"]
    dim = given.get("dim", -1)
    dim = -1 if dim is None else int(dim)
    scores = x.double().transpose(dim, -1)
    value = reference.transpose(dim, -1)
    lam = quantile(scores.shape[-1], scores.numel() // max(1, scores.shape[-1]), alarms)
    u = accumulator_unit(x.dtype)
    if call.name == "log_softmax":
        weights = value.exp()
        spread = softmax_spread(scores, weights, lam, u) / weights.clamp_min(1e-300)
        return torch.minimum(spread, 4 * u * (value.abs() + lam * scores.shape[-1] ** 0.5)).transpose(dim, -1)
    return softmax_spread(scores, value, lam, u).transpose(dim, -1)
