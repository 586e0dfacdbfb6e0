"""One call as a device computes it: which function or module, at which site, from which arguments.

An observer with a method `after` is shown calls, so that it can compute them again: elsewhere, with other arguments, or
simply twice.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..sites import Site
from .recognising import is_fresh

__all__ = ["PARAMETERS", "Call", "arguments_kept", "by_position", "compute", "plain_name", "writes"]

_SAME = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "rdiv": "div",
    "rtruediv": "div",
    "itruediv": "div",
    "idiv": "div",
    "multiply": "mul",
    "rmul": "mul",
    "imul": "mul",
    "radd": "add",
    "iadd": "add",
    "subtract": "sub",
    "rsub": "sub",
    "isub": "sub",
    "negative": "neg",
    "rpow": "pow",
    "ipow": "pow",
    "concat": "cat",
    "concatenate": "cat",
    "linalg_matmul": "matmul",
    "special_softmax": "softmax",
}
"""a function's name without underscores -> the name its sites have"""
PARAMETERS = {
    "linear": ("input", "weight", "bias"),
    "matmul": ("input", "other"),
    "mm": ("input", "mat2"),
    "bmm": ("input", "mat2"),
    "addmm": ("input", "mat1", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"),
    "softmax": ("input", "dim"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}
"""what may be given by position or by keyword"""
_NOT_COMPUTED = frozenset({"get", "set", "delete", "repr", "len", "format", "str", "bool", "iter", "contains", "hash"})
"""what Python asks of a tensor that computes no other tensor"""


@dataclass(frozen=True, eq=False)
class Call:
    """A call that has just been made. `args` are as they were before, also where the call has overwritten them."""

    sites: tuple[Site, ...]
    """the wanted sites of its value: one, or attention's and that of its second product"""
    function: Callable[..., Any]
    """what was called: a torch function, or the module that is a hand-written operator"""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: nn.Module
    """the innermost module that was running"""

    @property
    def site(self) -> Site:
        """The site, by its most particular name."""
        return self.sites[-1]

    @property
    def operator(self) -> str:
        """The operator's name, or the function's."""
        return self.site.operator

    @property
    def is_module(self) -> bool:
        """True for a hand-written operator, which is called as a whole."""
        return self.function is self.module

    @property
    def in_place(self) -> bool:
        """True if it writes into one of its arguments."""
        return writes(self.function, self.kwargs)

    def computed(self, value: Tensor) -> bool:
        """True if this value is the call's own work; else it is a view, or an argument given back."""
        return self.in_place or is_fresh(value, self.args, self.kwargs)

    def again(self) -> Any:
        """The same call once more; the caller sees to it that it is no new call of the model's (`Watch.probing`)."""
        args, kwargs = arguments_kept(self.function, self.args, self.kwargs)
        return self.ask(*args, **kwargs)

    def ask(self, *args: Any, **kwargs: Any) -> Any:
        """What the function, or the module without the user's hooks on it, gives for other arguments."""
        if not self.is_module:
            return compute(self.function, args, kwargs)
        with _own_hooks_aside(self.module):
            return self.module(*args, **kwargs)


def compute(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The value of a call; of an assignment to an index, which has none, what was assigned to."""
    value = function(*args, **kwargs)
    return args[0] if _is_assignment(function) else value


@contextmanager
def _own_hooks_aside(module: nn.Module) -> Iterator[None]:
    """Inside, the hooks that somebody has put on a module itself are not called: they have seen this call already."""
    names = [name for name in ("_forward_pre_hooks", "_forward_hooks") if getattr(module, name)]
    kept = {name: module.__dict__[name] for name in names}
    try:
        for name in names:
            module.__dict__[name] = OrderedDict()
        yield
    finally:
        module.__dict__.update(kept)


def plain_name(function: Callable[..., Any]) -> str | None:
    """What the sites of a function that is not in the catalogue are called; None if it computes nothing.

    >>> import torch
    >>> plain_name(torch.Tensor.__rmul__), plain_name(torch.Tensor.div_), plain_name(torch.Tensor.shape.__get__)
    ('mul', 'div', None)
    """
    name = getattr(function, "__name__", "").strip("_")
    if not name or name in _NOT_COMPUTED:
        return None
    return _SAME.get(name, name)


def by_position(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with those by position that can be: who takes a call apart need not ask how it was spelled."""
    found, rest = list(args), dict(kwargs)
    for name in PARAMETERS.get(plain_name(function) or "", ())[len(args) :]:
        if name not in rest:
            break
        found.append(rest.pop(name))
    return tuple(found), rest


def arguments_kept(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, as copies where the function will write into them."""
    if not writes(function, kwargs):
        return args, kwargs
    with torch._C.DisableTorchFunction():  # nobody computes these
        return tree_map(_copied, args), tree_map(_copied, kwargs)


def _copied(given: Any) -> Any:
    return given.clone() if isinstance(given, Tensor) and not isinstance(given, nn.Parameter) else given


def writes(function: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """True if a call writes into one of its arguments: by its name, so not where it merely gives one back."""
    name = getattr(function, "__name__", "")
    special = name.startswith("__")
    if "out" in kwargs or kwargs.get("inplace") is True or _is_assignment(function):
        return True
    return name.startswith("__i") and name != "__invert__" if special else name.endswith("_")


def _is_assignment(function: Callable[..., Any]) -> bool:
    return getattr(function, "__name__", "") == "__setitem__"
