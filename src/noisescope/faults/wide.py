"""One call in the precision of an accumulator."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..injection import Call, unshadowed

__all__ = ["is_narrow", "widely", "widened"]

Found = TypeVar("Found")


def widely(call: Call, function: Callable[..., Found], value: Tensor) -> Found:
    """The call in float32: what stands in the accumulator before it is cast.

    `function` takes the call's arguments in its stead; a hand-written operator is computed as the module does.
    """
    given = (call.args, call.kwargs)
    device = value.device.type
    if torch.is_autocast_enabled(device) and is_narrow(value.dtype):
        given = tree_map(lambda leaf: _rounded(leaf, value.dtype), given)  # as autocast does on the way in
    args, kwargs = tree_map(widened, given)
    if call.is_module:
        function = unshadowed(copy.deepcopy(call.module)).float().forward
    with torch.autocast(device, enabled=False):
        return function(*args, **kwargs)


def is_narrow(dtype: torch.dtype) -> bool:
    """True for a float of fewer than 32 bits."""
    return dtype.is_floating_point and dtype.itemsize < 4


def widened(given: Any) -> Any:
    """A tensor of a narrow dtype in float32; anything else as it is."""
    return given.float() if isinstance(given, Tensor) and is_narrow(given.dtype) else given


def _rounded(given: Any, dtype: torch.dtype) -> Any:
    return given.to(dtype) if isinstance(given, Tensor) and given.is_floating_point() else given
