"""Devices that multiply otherwise: narrow accumulators, narrow factors, other orders of summation.

A product that is spelled in a way that is not known (an einsum of three operands, say) stays as it is.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import InputError
from ..faults.products import BLOCK, Product, take_apart
from .given import Arithmetic, Given
from .rows import PRODUCTS, Device, register

__all__ = ["LANES", "round_to_tf32"]

LANES = 4
"""units among which a sum is dealt out"""
_SUMS = ("sum", "mean")

Multiply: TypeAlias = Callable[[Product], Tensor]


def _products(multiply: Multiply) -> Arithmetic:
    """Every spelling of a product, computed by one way to multiply."""

    def compute(given: Given) -> Tensor | None:
        def function(*args: Any, **kwargs: Any) -> Tensor | None:
            try:
                apart = take_apart(given.call.function, args, kwargs)
            except InputError:
                return None
            return multiply(apart) if apart.length else None

        return given.widely(function)

    return compute


# --- fewer bits -------------------------------------------------------------------------------------------------


def round_to_tf32(value: Tensor) -> Tensor:
    """A float32 value with ten stored bits of mantissa, to nearest, ties to even."""
    bits = value.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(value.isfinite(), rounded.view(torch.float32), value)


def _by_tf32(apart: Product) -> Tensor:
    return apart.whole(**{name: round_to_tf32(apart.given[name]) for name in apart.factors})


# --- other orders -----------------------------------------------------------------------------------------------


def _split(apart: Product, generator: torch.Generator | None = None) -> Tensor:
    """Each unit sums its share of the terms; the shares are added from the last to the first, or in a drawn order."""
    parts = list(apart.parts(_share(apart.length)))
    order = range(len(parts))[::-1] if generator is None else torch.randperm(len(parts), generator=generator).tolist()
    return reduce(torch.add, (parts[at] for at in order))


def _share(length: int) -> int:
    """A whole number of sixteen bytes, as grouped products want their factors."""
    return max(4, -(-length // LANES // 4) * 4)


def _sums(split: Multiply) -> Arithmetic:
    """Products, and sums over one dimension, which are products with ones."""
    products = _products(split)

    def compute(given: Given) -> Tensor | None:
        return _summed(given, split) if given.name in _SUMS else products(given)

    return compute


def _summed(given: Given, split: Multiply) -> Tensor | None:
    named = given.named("input", "dim", "keepdim")
    dim = named.get("dim")
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int) or not named["input"].is_floating_point() or not named["input"].ndim:
        return None

    def function(x: Tensor, *_: Any, **__: Any) -> Tensor:
        rows = x.movedim(dim, -1)
        ones = torch.ones(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        total = split(take_apart(torch.matmul, (rows, ones), {}))
        return total / rows.shape[-1] if given.name == "mean" else total

    found = given.widely(lambda *args, **kwargs: function(*args[:1] or (kwargs["input"],)))
    return found.unsqueeze(dim) if named.get("keepdim") else found


# --- the rows ---------------------------------------------------------------------------------------------------


def _narrow(dtype: torch.dtype) -> Callable[[torch.Generator], Arithmetic]:
    """The sum so far is cast to the narrow dtype after every block of terms; a bias is in it from the start."""
    return lambda _dice: _products(lambda apart: apart.accumulated(lambda total: total.to(dtype)))


for _name, _dtype in (("bf16_accumulation", torch.bfloat16), ("fp16_accumulation", torch.float16)):
    register(
        Device(
            _name,
            f"Products keep their sums in {str(_dtype).removeprefix('torch.')}: rounded after every {BLOCK} terms.",
            PRODUCTS,
            _narrow(_dtype),
            honest=False,
        )
    )
register(
    Device(
        "tf32",
        "Products of float32 take their factors rounded to 10 bits of mantissa, and sum in float32.",
        PRODUCTS,
        lambda _dice: _products(_by_tf32),
        honest=False,
        dtypes=(torch.float32,),
    )
)
register(
    Device(
        "reduction_order",
        f"Products and sums are dealt out to {LANES} units, whose shares are added from the last to the first.",
        (*PRODUCTS, *_SUMS),
        lambda _dice: _sums(_split),
        honest=True,
    )
)
register(
    Device(
        "racing_sums",
        f"Products and sums are dealt out to {LANES} units, whose shares are added in an order drawn for each call.",
        (*PRODUCTS, *_SUMS),
        lambda dice: _sums(partial(_split, generator=dice)),
        honest=True,
    )
)
