"""Modules that compute something else, for one thread and for as long as a `with` block lasts.

Used around single calls of a model, to record what its blocks give or to skip blocks whose result is known. Torch's
hooks cannot skip a forward, so the modules' own `forward` is shadowed and put back; other threads get the original,
and wait if they want to replace something too: two that shadow one module could put each other's shadow back.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import nn

__all__ = ["Replacement", "forwards_replaced", "unshadowed"]

Replacement: TypeAlias = Callable[..., Any]
"""called as replacement(original forward, *args, **kwargs) in place of the forward"""

_ABSENT = object()
_TURN = threading.RLock()


@contextmanager
def forwards_replaced(replacements: Mapping[nn.Module, Replacement]) -> Iterator[None]:
    """The modules' forwards are replaced on this thread until the block ends."""
    with _TURN:
        before = {module: module.__dict__.get("forward", _ABSENT) for module in replacements}
        try:
            for module, replacement in replacements.items():
                module.__dict__["forward"] = _only_here(module.forward, replacement)
            yield
        finally:
            for module, forward in before.items():
                if forward is _ABSENT:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = forward


def unshadowed(module: nn.Module) -> nn.Module:
    """The module, for a copy that was made while its forward was replaced: it computes by itself, as its class says."""
    if "shadows" in getattr(module.__dict__.get("forward"), "__dict__", {}):
        module.__dict__.pop("forward")
    return module


def _only_here(original: Callable[..., Any], replacement: Replacement) -> Callable[..., Any]:
    thread = threading.get_ident()

    def forward(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        return replacement(original, *args, **kwargs)

    forward.__dict__["shadows"] = original
    return forward
