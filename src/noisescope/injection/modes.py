"""The stack of function modes of one thread: a mode may be put under the others, and taken out from between them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

__all__ = ["keep_modes", "mode_stack", "modes_replaced", "push_mode", "push_mode_below", "remove_mode"]

push_mode: Callable[[TorchFunctionMode], None] = _push_mode


def mode_stack() -> list[TorchFunctionMode]:
    """This thread's modes, the innermost last."""
    stack: list[TorchFunctionMode] = _get_current_function_mode_stack()
    return stack


def push_mode_below(mode: TorchFunctionMode) -> None:
    """Puts a mode under all others but the one of `set_default_device`, which insists on the bottom."""
    default_device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    above = []
    while (stack := mode_stack()) and stack[-1] is not default_device:
        above.append(_pop_mode())
    for other in (mode, *reversed(above)):
        _push_mode(other)


def remove_mode(mode: TorchFunctionMode) -> None:
    """Takes a mode out, wherever it stands."""
    keep_modes(lambda other: other is not mode)


def keep_modes(keep: Callable[[TorchFunctionMode], bool]) -> None:
    """Takes all modes out but those to keep."""
    _set_modes([mode for mode in mode_stack() if keep(mode)])


@contextmanager
def modes_replaced(modes: Iterable[TorchFunctionMode] = ()) -> Iterator[list[TorchFunctionMode]]:
    """Inside, the stack is these modes and no others; gives those that were there, which are back at the end."""
    before = mode_stack()
    _set_modes(modes)
    try:
        yield before
    finally:
        _set_modes(before)


def _set_modes(modes: Iterable[TorchFunctionMode]) -> None:
    while mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
