"""Numbers too small to be normal: a device may give 0 for them, or take them for 0."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from noisescope.devices.denormals import flushed, is_moved

from .device import Arithmetic, Given, Variant

__all__ = ["FLUSHING"]


def _flushed(given: Any) -> Any:
    if not isinstance(given, Tensor) or not given.is_floating_point():
        return given
    return flushed(given)


def _results() -> Arithmetic:
    return lambda given: None if is_moved(given) else _flushed(given.value)


def _operands() -> Arithmetic:
    def compute(given: Given) -> Tensor | None:
        if is_moved(given) or given.call.in_place:
            return None
        args, kwargs = tree_map(_flushed, (given.call.args, given.call.kwargs))
        function = given.call.module.forward if given.call.is_module else given.call.function
        return _flushed(function(*args, **kwargs))

    return compute


FLUSHING = (
    Variant("denormal results flushed", (), _results),
    Variant("denormals flushed", (), _operands),
)
