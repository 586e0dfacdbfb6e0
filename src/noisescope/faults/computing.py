"""Faults of the arithmetic: an operator that is computed in another way, from the same arguments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .kinds import Kind, register
from .products import take_apart

__all__ = ["exp_by_table", "round_bits", "softmax_by"]


def _low_precision_accumulate(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bits: float
) -> Any:
    """The product with an accumulator that rounds to so many bits of mantissa every sixteen terms."""
    try:
        return take_apart(function, args, kwargs).accumulated(lambda total: round_bits(total, int(bits)))
    except InputError as error:
        raise InputError(f"low_precision_accumulate: {error}") from None


def round_bits(value: Tensor, bits: int) -> Tensor:
    """The value rounded to so many bits of mantissa, to nearest, ties to even."""
    mantissa, exponent = torch.frexp(value.double())
    rounded = torch.ldexp(torch.round(torch.ldexp(mantissa, torch.tensor(bits + 1))), exponent - bits - 1)
    return torch.where(value.isfinite(), rounded.to(value.dtype), value)


# --- softmax ----------------------------------------------------------------------------------------------------


def softmax_by(exp: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Softmax with another exp, of numbers that are never positive."""
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    x: Tensor = given["input"]
    if given.get("dim") is None:
        raise InputError("softmax is called without a dim")
    dim = int(given["dim"])
    if (dtype := given.get("dtype")) is not None and dtype.itemsize > x.dtype.itemsize:
        x = x.to(dtype)
    weights = exp(x - x.amax(dim, keepdim=True))
    return weights / weights.sum(dim, keepdim=True)


def exp_by_table(x: Tensor, step: float) -> Tensor:
    """The exponential, looked up at the nearest multiple of the step."""
    return torch.exp(torch.round(x / step) * step)


def _lut_exp(_function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: float) -> Any:
    """Softmax with exp looked up at multiples of the step."""
    try:
        return softmax_by(lambda x: exp_by_table(x, step), args, kwargs)
    except InputError as error:
        raise InputError(f"lut_exp: {error}") from None


register(
    Kind(
        "low_precision_accumulate",
        7,
        recompute=_low_precision_accumulate,
        operators=("linear", "matmul", "bmm"),
        before_cast=True,
        least=1,
        whole=True,
    )
)
register(Kind("lut_exp", 2**-4, recompute=_lut_exp, operators=("softmax",), before_cast=True, most=16.0))
