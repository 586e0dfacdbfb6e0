"""A call moved to the host: its arguments on the CPU, and the same computation in its own dtype or in float64."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ...injection import Call, by_position, modes_replaced, plain_name
from ...injection.calls import arguments_kept, compute

__all__ = ["Doubled", "HostCall", "default_epsilon", "on_host"]

_CPU = torch.device("cpu")
_TO_FLOAT = frozenset({"float", "half", "bfloat16"})


@contextmanager
def on_host() -> Iterator[None]:
    """Inside, nothing passes through any function mode, and no graph is built: arithmetic is the host's own."""
    with torch.no_grad(), modes_replaced():
        yield


@dataclass(frozen=True, eq=False)
class HostCall:
    """One call, to be computed on the host. Make it, and use it, inside `on_host`."""

    operator: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: nn.Module | None
    """the hand-written operator, if the call is one"""

    @classmethod
    def of(cls, call: Call) -> "HostCall":
        """The call with its arguments on the CPU; parameters are read from the device."""
        args, kwargs = tree_map(_to_cpu, by_position(call.function, call.args, call.kwargs))
        if plain_name(call.function) == "rms_norm" and (len(args) < 4 or args[3] is None):
            args = (*args, *(None,) * (3 - len(args)))[:3]  # in float64 its own eps would be another
            kwargs = {**kwargs, "eps": default_epsilon(args[0].dtype)}
        return cls(call.operator, call.function, args, kwargs, call.module if call.is_module else None)

    @property
    def name(self) -> str:
        """The function's plain name: in place or not, method or not."""
        return plain_name(self.function) or ""

    @cached_property
    def _copy(self) -> nn.Module:
        return copy.deepcopy(self.module).to(_CPU)  # type: ignore[union-attr]

    @cached_property
    def _in_double(self) -> nn.Module:
        return copy.deepcopy(self.module).to(_CPU).double()  # type: ignore[union-attr]

    def without_denormals(self) -> "HostCall | None":
        """The call as a device sees it that takes numbers below the normal ones for 0; None if there are none."""
        found = tree_map(_flushed, (self.args, self.kwargs))
        before, after = tree_leaves((self.args, self.kwargs)), tree_leaves(found)
        if all(a is b for a, b in zip(before, after, strict=True)):
            return None
        return replace(self, args=found[0], kwargs=found[1])

    def native(self) -> Any:
        """The value in the call's own dtypes."""
        if self.module is not None:
            return self._copy.forward(*self.args, **self.kwargs)
        return compute(self.function, *arguments_kept(self.function, self.args, self.kwargs))

    def in_double(self, *args: Any) -> Any:
        """The value in float64 all the way; of other positional arguments, if given."""
        given, named = tree_map(_to_double, (args or self.args, self.kwargs))
        with Doubled():
            if self.module is not None:
                return self._in_double.forward(*given, **named)
            return compute(self.function, *arguments_kept(self.function, given, named))


def default_epsilon(dtype: torch.dtype) -> float:
    """The eps of `rms_norm` where none is given, read off the function: manual and kernels differ for narrow dtypes."""
    own, wide = torch.finfo(dtype).eps, min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    with on_host():
        value = torch.nn.functional.rms_norm(torch.full((1, 2), wide**0.5, dtype=dtype), (2,))
    return wide if float(value[0, 0]) > 0.6 else own  # 1 / sqrt(2) if it is the smaller one


class Doubled(TorchFunctionMode):
    """Whoever asks for a narrower float gets float64: norms are written to compute in float32 and cast back."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _TO_FLOAT and args and isinstance(args[0], Tensor):
            return args[0].double()
        args, kwargs = tree_map(_double_dtype, (args, kwargs or {}))
        return func(*args, **kwargs)


def _double_dtype(given: Any) -> Any:
    return torch.float64 if isinstance(given, torch.dtype) and given.is_floating_point else given


def _to_double(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.detach().double() if given.is_floating_point() else given
    return _double_dtype(given)


def _flushed(given: Any) -> Any:
    if not isinstance(given, Tensor) or not given.is_floating_point():
        return given
    small = (given != 0) & (given.abs() < torch.finfo(given.dtype).tiny)
    return given.masked_fill(small, 0.0) if bool(small.any()) else given


def _to_cpu(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.detach().to(_CPU)
    return _CPU if isinstance(given, torch.device) else given
