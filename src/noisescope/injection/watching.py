"""Shows every value that an operator computes to an observer, who may replace it.

A `TorchFunctionMode` sees functions however they are spelled; module hooks see hand-written norms and activations and
say where execution is. The hooks are torch's process-wide ones, filtered by thread and by module, so that nothing is
ever attached to the model: a copy or a state dict taken meanwhile carries nothing out, and the user's own hooks are
not touched. The mode itself is thread-local.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from ..errors import ExitOrder, HiddenOperator, ModelError
from ..operators import fused_kernels, spellings
from ..sites import Layout, Site
from .compiled import compiled, refuse_compiled, refuse_transforms, under_compile
from .modes import keep_modes, mode_stack, modes_replaced, push_mode, push_mode_below, remove_mode
from .operands import OperandWatch
from .places import CallObserver, Observer, Places
from .scope import Scope, in_backward, probing
from .showing import Showing

__all__ = ["Watch", "open_observers", "unwatched"]


class Watch:
    """A context manager that shows an observer the values of a model, on the thread that entered it.

    `model=None` watches whatever model runs, and calls outside any model too. `in_steps` computes all attention in
    steps, so that runs that look at it and runs that do not are alike; `whole` leaves fused kernels as they are,
    whatever the observer wants of their steps.
    """

    def __init__(
        self,
        observer: Observer | CallObserver,
        model: nn.Module | None = None,
        *,
        blocks: str | None = None,
        layout: Layout | None = None,
        in_steps: bool = False,
        whole: bool = False,
        first_step: int = 0,
    ) -> None:
        self.layout = layout or (Layout.of(model, blocks=blocks) if model is not None else None)
        self.scope = Scope(first_step)
        self.hidden: dict[tuple[str, str], tuple[str, ...]] = {}
        """(module path, kernel) -> operators that ran inside it, out of reach"""
        self.background = False
        """True to stand underneath every `with` block of this thread, and to be closed in any order"""
        self.active = False
        self._places = Places(self.scope, observer)
        self.operands = OperandWatch(self.scope, self._places, lambda: self.active)
        self._minds_lateness = hasattr(observer, "too_late")
        self._loose = self.layout is None
        self.showing = Showing(
            self.scope,
            self._places,
            self.operands,
            loose=self._loose,
            in_steps=in_steps,
            whole=whole,
            is_inner=lambda: any(isinstance(mode, _Mode) for mode in mode_stack()),
        )
        self._mode = _Mode(self)
        self._thread = 0
        self._recomputing: set[int] = set()
        """autograd threads that run a block of ours again at this moment"""
        self._handles: list[RemovableHandle] = []
        if self.layout is not None:
            self.scope.add(self.layout)

    @property
    def steps_difference(self) -> dict[str, Tensor]:
        """Module path -> largest abs difference of attention in steps to the fused kernel, on its first row."""
        return self.showing.steps_difference

    @property
    def observer(self) -> Observer:
        """Who is shown the values."""
        found: Observer = self._places.observer
        return found

    @observer.setter
    def observer(self, observer: Observer) -> None:
        self._places.observer = observer

    # --- opening and closing ------------------------------------------------------------------------------------

    def __enter__(self) -> "Watch":
        if self.active:
            raise ExitOrder("this injection is open already; make a second one to nest")
        if self.layout is not None:
            refuse_compiled(self.layout.paths)
        _sweep()
        self._thread = threading.get_ident()
        self.active = True
        self._handles = [
            register_module_forward_pre_hook(self._module_starts),
            register_module_forward_hook(self._module_ends, always_call=True),
        ]
        (push_mode_below if self.background else push_mode)(self._mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        was_open, self.active = self.active, False
        while self._handles:
            self._handles.pop().remove()
        self._recomputing.clear()
        if was_open and threading.get_ident() != self._thread:
            raise ExitOrder(
                "an injection was closed on another thread than it was opened on; it has no effect any more"
            )
        _sweep(unless=self._mode)
        out_of_order = not self.background and mode_stack()[-1:] != [self._mode]
        _sweep()
        if not was_open:
            raise ExitOrder("an injection was closed that is not open")
        if out_of_order and kind is None:
            raise ExitOrder("an injection was closed before one that was opened inside it; it is undone all the same")

    def ask_again(self) -> None:
        """Forgets which places the observer wanted: it has changed its mind."""
        self._places.forget()

    def refuse_hidden(self, asked: str, wanted: Collection[str] | None, seen: Collection[str]) -> None:
        """Raises if one of the wanted operators was not seen because it ran inside a fused kernel."""
        if wanted is None and seen:
            return
        for (module, kernel), operators in self.hidden.items():
            if inside := sorted(set(operators).intersection(operators if wanted is None else wanted).difference(seen)):
                raise HiddenOperator(
                    f"{asked}: {' '.join(inside)} runs inside the fused kernel {kernel} of {module or 'the model'} and "
                    "cannot be computed in steps; use an attention implementation such as sdpa or eager"
                )

    @contextmanager
    def probing(self, sites: Iterable[Site] = ()) -> Iterator[None]:
        """What is computed inside is a question of the observer's own, which only others see.

        It may call functions and modules again, with other arguments: they pass through every watch that was opened
        before this one, at the place and with the call number of the call that is being looked at: that of `sites`.
        """
        was_active, self.active = self.active, False
        try:
            with probing(sites):
                yield
        finally:
            self.active = was_active

    def join(self, module: nn.Module, args: Any) -> Any:
        """Catches up with a module whose call opened this watch; what a pre-hook of that module must return."""
        return self._module_starts(module, args)

    # --- modules ------------------------------------------------------------------------------------------------

    def _mine(self, module: nn.Module, args: Any) -> bool:
        """On the entering thread, or on an autograd thread that recomputes a block of ours."""
        if not self.active:
            return False
        thread = threading.get_ident()
        if thread == self._thread or thread in self._recomputing:
            return True
        return in_backward() and self.scope.remembers(module, args) and _is_torch_thread()

    def _module_starts(self, module: nn.Module, args: Any) -> Any:
        if not self._mine(module, args):
            return None
        if under_compile():
            raise compiled(module)
        if not self.scope.frames:
            refuse_transforms(module)
        if self._loose and not self.scope.frames and not self.scope.knows(module):
            with torch._C.DisableTorchFunction():  # norms are probed, which is no call of the model's
                self.scope.add(_adopt(module))
        frame = self.scope.enter(module, args)
        if frame is None:
            return None
        if self._minds_lateness and self.scope.run.recomputable:
            self._guard(args)
        if in_backward() and self._mode not in mode_stack():
            # `loss.backward()` is a torch function itself, so torch has put the mode aside while it runs
            push_mode(self._mode)
            frame.opened_mode = True
            self._recomputing.add(threading.get_ident())
        if frame.operator is None or not torch.is_grad_enabled():
            return None
        place = self._places.at(frame, frame.operator)
        if not place.backward or getattr(module, "inplace", False):  # an in-place operand stays itself
            return None
        return self.operands.of_module(frame, place, args)

    def _guard(self, args: Any) -> None:
        """Sees to it that reentrant checkpointing, which does not check, cannot recompute unseen what was seen."""
        with torch._C.DisableTorchFunction():
            node: Any = args[0].grad_fn if args and isinstance(args[0], Tensor) else None
        if node is None or node.name() != "CheckpointFunctionBackward" or self in node.metadata:
            return
        node.metadata[self] = node.register_prehook(self._before_recomputing)

    def _before_recomputing(self, _grads: Any) -> None:
        if not self.active:
            self.observer.too_late()  # type: ignore[attr-defined]

    def _module_ends(self, module: nn.Module, args: Any, output: Any) -> Any:
        if torch.compiler.is_compiling() or not self._mine(module, args):
            return None
        frame = self.scope.running(module)
        if frame is None:
            return None
        try:
            return self.showing.module(frame, args, output)
        finally:
            self.scope.leave(frame)
            if frame.opened_mode:
                remove_mode(self._mode)
                self._recomputing.discard(threading.get_ident())

    def note_kernel(self, kernel: Callable[..., Any], operators: tuple[str, ...]) -> None:
        """Remembers a fused kernel that hides operators."""
        if (frame := self.scope.current) is not None:
            self.hidden[frame.path, getattr(kernel, "__name__", str(kernel))] = operators


class _Mode(TorchFunctionMode):
    """The thread-local half of a watch: every torch function called on this thread passes here."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._kernels = fused_kernels()
        self._spellings = spellings()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        watch, kwargs = self.watch, kwargs or {}
        if not watch.active:
            return func(*args, **kwargs)
        operator = self._spellings.get(func)
        if operator is not None:
            return watch.showing.operator(operator, func, args, kwargs)
        if (hides := self._kernels.get(func)) is not None:
            watch.note_kernel(func, hides)
        if torch.is_grad_enabled():
            args = watch.operands.of_norm(args)
        return watch.showing.other(func, args, kwargs)


def open_observers() -> list[Observer]:
    """The observers that see what this thread computes now."""
    return [mode.watch.observer for mode in mode_stack() if isinstance(mode, _Mode) and mode.watch.active]


@contextmanager
def unwatched() -> Iterator[None]:
    """What this thread computes inside is seen by none of the watches that are open around it."""
    around = mode_stack()
    paused = [mode.watch for mode in around if isinstance(mode, _Mode) and mode.watch.active]
    with modes_replaced(mode for mode in around if not isinstance(mode, _Mode)):
        for watch in paused:
            watch.active = False
        try:
            yield
        finally:
            for watch in paused:
                watch.active = True


def _sweep(*, unless: TorchFunctionMode | None = None) -> None:
    """Takes the modes of closed watches off this thread's stack, also those that another thread has closed."""
    keep_modes(lambda mode: mode is unless or not isinstance(mode, _Mode) or mode.watch.active)


def _is_torch_thread() -> bool:
    """True on a thread that Python did not start: torch's own, which run the backward passes of other devices."""
    me = threading.get_ident()
    return not any(
        thread.ident == me and not isinstance(thread, threading._DummyThread) for thread in threading.enumerate()
    )


def _adopt(module: nn.Module) -> Layout:
    """The layout of a model met on the way, blocks or not."""
    try:
        return Layout.of(module)
    except ModelError:
        return Layout.without_blocks(module)
