"""What functions of single elements, and sums of elements, may round on their way."""

from math import prod, sqrt

import torch
from torch import Tensor

from ..rounding import accumulator_unit, quantile, unit
from .arguments import HostCall
from .rules import register

__all__: list[str] = []

_UNDERFLOW = 2.0**-118
"""where an implementation through exp runs out of range: exp overflows at 88.7, and silu is near 1e-36 there"""


@register("divided", "div", "sqrt", "reciprocal", "addcmul", "addcdiv")
def _divided(call: HostCall, reference: Tensor, _alarms: float) -> Tensor:
    """4u|r|: hardware may multiply by a reciprocal, or fuse a product into a sum."""
    return 4 * _unit(call) * reference.abs()


@register("inverse root", "rsqrt")
def _inverse_root(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """As `divided`; in a narrow dtype the root is rounded to it before it is inverted, as kernels of CPUs do."""
    own = unit(_first(call).dtype)
    return _divided(call, reference, alarms) + (own if own > _unit(call) else 0.0) * reference.abs()


@register(
    "elementwise",
    *("exp", "exp2", "expm1", "log", "log1p", "log2", "tanh", "sigmoid", "silu", "mish", "softplus", "erf"),
    *("elu", "selu", "celu", "hardswish", "hardsigmoid", "logsigmoid", "leaky_relu", "relu6", "quick_gelu"),
)
def _elementwise(call: HostCall, reference: Tensor, _alarms: float) -> Tensor:
    """u (|r| (4 + 2|x|) + 2|x|) + 2^-118.

    A few roundings of the result; the argument rounded before an exponential, which multiplies its error by |x| r; and
    2u|x| for forms that subtract from 1, such as silu through tanh: x/2 (1 + tanh(x/2)).
    """
    x = _first(call).double().abs().broadcast_to(reference.shape)
    return _unit(call) * (reference.abs() * (4 + 2 * x) + 2 * x + 2 * (call.name in ("log", "log1p", "log2"))) + (
        _UNDERFLOW
    )


@register("gelu", "gelu")
def _gelu(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """As `elementwise`, and 8u|x|.

    Kernels take erf from a polynomial that is off by 1.5e-7 (Abramowitz and Stegun 7.1.26), which is 2.5u, and rounds
    a dozen times on its way: 16u in 1 + erf, half of it times |x|.
    """
    return _elementwise(call, reference, alarms) + 8 * _unit(call) * _first(call).double().abs()


@register("power", "pow", "float_power")
def _power(call: HostCall, reference: Tensor, _alarms: float) -> Tensor:
    """u |r| (4 + 2|log|r||): a power may go through exp(y log x)."""
    return _unit(call) * reference.abs() * (4 + 2 * reference.abs().clamp_min(1e-300).log().abs()) + _UNDERFLOW


@register("activation", "module gelu", "module silu")
def _activation(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """As `elementwise`, and in a narrow dtype the roundings of each line that the module is written in.

    For gelu by tanh, with u the dtype's: the argument has four roundings, tanh takes at most .45 of their sum on and
    adds one, 1 + tanh one, the two products one each: u (3|r| + 1.4|x|) to first order, 4 and 1.5 here.
    """
    x = _first(call)
    spread = _gelu(call, reference, alarms) if call.operator == "gelu" else _elementwise(call, reference, alarms)
    if unit(x.dtype) <= _unit(call):
        return spread
    return spread + unit(x.dtype) * (4 * reference.abs() + 1.5 * x.double().abs())


@register("angle", "sin", "cos")
def _angle(call: HostCall, reference: Tensor, _alarms: float) -> Tensor:
    """u (4 + |x|): the argument rounded once while it is brought into one turn."""
    return _unit(call) * (4 + _first(call).double().abs()).broadcast_to(reference.shape)


@register("summed", "sum", "mean", "cumsum", "index_add", "scatter_add", "logsumexp", "var", "std", "norm", "prod")
def _summed(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """2 (lam sqrt(K) + 2) u (f(|x|) + |r|), K the terms of one sum: a variance is built from two of them."""
    terms = max(1, prod(_first(call).shape) // max(1, reference.numel() if call.name != "cumsum" else 1))
    lam = quantile(terms, reference.numel(), alarms)
    args = [given.abs() if isinstance(given, Tensor) and given.is_floating_point() else given for given in call.args]
    sizes: Tensor = call.in_double(*args)
    return 2 * (lam * sqrt(terms) + 2) * _unit(call) * (sizes.abs() + reference.abs())


def _unit(call: HostCall) -> float:
    return accumulator_unit(_first(call).dtype)


def _first(call: HostCall) -> Tensor:
    """The first floating-point argument."""
    found = next((given for given in call.args if isinstance(given, Tensor) and given.is_floating_point()), None)
    if found is None:
        found = next((given for given in call.kwargs.values() if isinstance(given, Tensor)), torch.zeros(()))
    return found
