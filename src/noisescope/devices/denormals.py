"""A device for which numbers too small to be normal are 0."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .given import Given
from .rows import Device, register

__all__ = ["flushed", "is_moved"]

_COPIES = (
    *("embedding", "cat", "stack", "to", "float", "contiguous", "clone", "reshape", "getitem", "setitem", "gather"),
    *("where", "repeat", "repeat_interleave", "expand", "index_select", "masked_fill", "type", "type_as", "half"),
    *("bfloat16", "double", "copy", "dropout", "pad", "flip", "roll"),
)
"""what moves numbers and computes none, as views do; dropout would draw again"""


def is_moved(given: Given) -> bool:
    """True if the call's value is made of numbers that were there before."""
    return given.name in _COPIES or not given.call.computed(given.value)


def flushed(given: Tensor) -> Tensor:
    """0 for what is subnormal in float32; the rest as it is."""
    return torch.where(given.abs() < torch.finfo(torch.float32).tiny, torch.zeros_like(given), given)


def _flush(given: Given) -> Tensor | None:
    """Operands are flushed where one is subnormal, and so is the result."""
    if is_moved(given):
        return None
    before = (given.call.args, given.call.kwargs)
    draws = given.call.kwargs.get("dropout_p")
    if draws or given.call.in_place or not any(map(_has_subnormals, tree_leaves(before))):
        return flushed(given.value)
    args, kwargs = tree_map(_flushed_if_float, before)
    function = given.call.module.forward if given.call.is_module else given.call.function
    return flushed(function(*args, **kwargs))


def _is_float(given: Any) -> bool:
    return isinstance(given, Tensor) and given.is_floating_point()


def _flushed_if_float(given: Any) -> Any:
    return flushed(given) if _is_float(given) else given


def _has_subnormals(given: Any) -> bool:
    return _is_float(given) and bool(((given != 0) & (given.abs() < torch.finfo(torch.float32).tiny)).any())


register(
    Device(
        "flush_denormals",
        "Operands and results that are subnormal in float32 are 0; float16 has no numbers that small.",
        (),
        lambda _dice: _flush,
        honest=True,
        dtypes=(torch.float32, torch.bfloat16),
    )
)
