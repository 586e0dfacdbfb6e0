"""Numbers too small to be normal: a device may give 0 for them, or take them for 0."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .device import Arithmetic, Given, Variant

__all__ = ["FLUSHING"]

_COPIES = (
    *("embedding", "cat", "stack", "to", "float", "contiguous", "clone", "reshape", "getitem", "gather", "where"),
    *("repeat", "repeat_interleave", "expand", "index_select", "masked_fill", "type", "half", "bfloat16"),
)
"""what moves numbers and computes none, as views do"""


def _is_moved(given: Given) -> bool:
    mine = given.value.untyped_storage().data_ptr()
    tensors = [leaf for leaf in tree_leaves((given.call.args, given.call.kwargs)) if isinstance(leaf, Tensor)]
    return given.name in _COPIES or any(leaf.untyped_storage().data_ptr() == mine for leaf in tensors)


def _flushed(given: Any) -> Any:
    if not isinstance(given, Tensor) or not given.is_floating_point():
        return given
    return torch.where(given.abs() < torch.finfo(torch.float32).tiny, torch.zeros_like(given), given)


def _results() -> Arithmetic:
    return lambda given: None if _is_moved(given) else _flushed(given.value)


def _operands() -> Arithmetic:
    def compute(given: Given) -> Tensor | None:
        if _is_moved(given) or given.call.in_place:
            return None
        args, kwargs = tree_map(_flushed, (given.call.args, given.call.kwargs))
        function = given.call.module.forward if given.call.is_module else given.call.function
        return _flushed(function(*args, **kwargs))

    return compute


FLUSHING = (
    Variant("denormal results flushed", (), _results),
    Variant("denormals flushed", (), _operands),
)
