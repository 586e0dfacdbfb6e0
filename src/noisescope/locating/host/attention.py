"""What a fused attention kernel may round on its way: its scores, its softmax, its second product."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ...injection import attention_in_steps, plain_call, sdpa_arguments
from ..rounding import accumulator_unit, quantile, unit
from .arguments import Doubled, HostCall
from .rules import register
from .softmax import softmax_spread

__all__ = ["attention_in_double", "attention_spread"]


def attention_in_double(call: HostCall) -> Tensor:
    """Attention in steps, in float64."""
    with Doubled():
        return attention_in_steps(plain_call, **_given(call))


@register("attention", "scaled_dot_product_attention")
def _attention(call: HostCall, _reference: Tensor, alarms: float) -> Tensor:
    return attention_spread(call, alarms)


def attention_spread(call: HostCall, alarms: float, u: float | None = None) -> Tensor:
    """sum_k |v_k| (error of p_k + u' p_k) + lam sqrt(T) u sum_k p_k |v_k|.

    The error of the weights p is that of a softmax (`softmax.softmax_spread`) whose scores have the error of a product
    of length D, lam sqrt(D) u |q| |k| scale, and of its scaling, 2u|s|. u' is the unit of a narrow dtype: fused
    kernels cast p to it before the second product.
    """
    given = _given(call)
    query, key, value = given["query"], given["key"], given["value"]
    if given.pop("enable_gqa", False):
        groups = query.size(-3) // key.size(-3)
        key, value = (operand.repeat_interleave(groups, dim=-3) for operand in (key, value))
    seen: dict[str, Tensor] = {}

    def keep(operator: str, function: Any, args: Any, kwargs: Any) -> Tensor:
        found = plain_call(operator, function, args, kwargs)
        if operator == "softmax":
            seen["scores"], seen["weights"] = args[0], found
        return found

    with Doubled():
        attention_in_steps(keep, **{**given, "key": key, "value": value})
    scores, weights = seen["scores"], seen["weights"]
    dtype = call.args[0].dtype if call.args else call.kwargs["query"].dtype
    u, narrow = accumulator_unit(dtype) if u is None else u, unit(dtype)
    scale = given.get("scale") or 1 / sqrt(query.size(-1))
    lam = quantile(max(query.shape[-1], scores.shape[-1]), scores.numel(), alarms)
    sizes = query.norm(dim=-1, keepdim=True) @ key.norm(dim=-1, keepdim=True).transpose(-2, -1)
    finite = torch.where(scores.abs() < 1e30, scores.abs(), 0.0)
    error = lam * sqrt(query.shape[-1]) * u * sizes * abs(scale) + 2 * u * finite
    spread = softmax_spread(scores, weights, lam, u, error)
    if narrow > u:
        spread = spread + 2 * narrow * weights
    mixed: Tensor = spread @ value.abs() + lam * sqrt(scores.shape[-1]) * u * (weights @ value.abs())
    return mixed


def _given(call: HostCall) -> dict[str, Any]:
    given = sdpa_arguments(call.args, call.kwargs)
    return {
        name: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for name, v in given.items()
        if v is not None
    }
