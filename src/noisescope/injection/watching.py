"""Shows every value that an operator computes to an observer, who may replace it.

A `TorchFunctionMode` sees functions however they are spelled; module hooks see hand-written norms and activations and
say where execution is. The hooks are torch's process-wide ones, filtered by thread and by module, so that nothing is
ever attached to the model: a copy or a state dict taken meanwhile carries nothing out, and the user's own hooks are
not touched. The mode itself is thread-local.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from ..errors import CompiledModel, ExitOrder, ModelError
from ..operators import OPERATORS, fused_kernels, spellings
from ..sites import Layout, Site
from ..specs import Layer, Phase
from .attention import attention_in_steps, plain_call
from .gradients import take_value, visit_gradient
from .scope import Frame, Scope, in_backward

__all__ = ["Observer", "Watch"]


class Observer(Protocol):
    """Who looks at values, and may replace them.

    One with a method `before(sites, operands, *, step)` is also shown what each value is computed from, just before
    it is: the tensors given, without parameters, factors before the addend of `addmm` and `baddbmm`. It may not
    replace these. Of a hand-written norm or activation it sees the positional arguments, once the module has run.
    """

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True to be shown the values of this place. Asked once per place and remembered."""
        ...

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value to go on with.

        `sites` are the wanted ones that this value belongs to: one, or `attention` and its second product.
        `owned`: nobody else holds this tensor, it may be changed in place.
        """
        ...

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The gradient to go on with; `part` counts the operator's inputs."""
        ...


@dataclass(slots=True)
class _Place:
    """One operator of one module in one layer, and whether the observer wants to see it."""

    layer: Layer | None
    operator: str
    module: str
    forward: bool
    backward: bool


class Watch:
    """A context manager that shows an observer the values of a model, on the thread that entered it.

    `model=None` watches whatever model runs, and, as `loose`, calls outside any model too.
    """

    def __init__(
        self,
        observer: Observer,
        model: nn.Module | None = None,
        *,
        blocks: str | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.observer = observer
        self._shows_operands = hasattr(observer, "before")
        self.layout = layout or (Layout.of(model, blocks=blocks) if model is not None else None)
        self.scope = Scope()
        self.hidden: dict[tuple[str, str], tuple[str, ...]] = {}
        """(module path, kernel) -> operators that ran inside it, out of reach"""
        self.steps_difference: dict[str, Tensor] = {}
        """module path -> largest abs difference of attention in steps to the fused kernel, on its first row"""
        self._loose = self.layout is None
        self._places: dict[tuple[str, str, Layer | None], _Place] = {}
        self._mode = _Mode(self)
        self._thread = 0
        self._recomputing: set[int] = set()
        """autograd threads that run a block of ours again at this moment"""
        self.background = False
        """True to stand underneath every `with` block of this thread, and to be closed in any order"""
        self._handles: list[RemovableHandle] = []
        self.active = False
        if self.layout is not None:
            self.scope.add(self.layout)

    # --- opening and closing ------------------------------------------------------------------------------------

    def __enter__(self) -> "Watch":
        if self.active:
            raise ExitOrder("this injection is open already; make a second one to nest")
        if self.layout is not None:
            refuse_compiled(self.layout.root)
        _sweep()
        self._thread = threading.get_ident()
        self.active = True
        self._handles = [
            register_module_forward_pre_hook(self._module_starts),
            register_module_forward_hook(self._module_ends, always_call=True),
        ]
        (_push_below if self.background else _push_mode)(self._mode)
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
        out_of_order = not self.background and _mode_stack()[-1:] != [self._mode]
        _sweep()
        if not was_open:
            raise ExitOrder("an injection was closed that is not open")
        if out_of_order and kind is None:
            raise ExitOrder("an injection was closed before one that was opened inside it; it is undone all the same")

    def ask_again(self) -> None:
        """Forgets which places the observer wanted: it has changed its mind."""
        self._places.clear()

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
        if _under_compile():
            raise compiled(module)
        if self._loose and not self.scope.frames and not self.scope.knows(module):
            with torch._C.DisableTorchFunction():  # norms are probed, which is no call of the model's
                self.scope.add(_adopt(module))
        frame = self.scope.enter(module, args)
        if frame is None:
            return None
        if in_backward() and self._mode not in _mode_stack():
            # `loss.backward()` is a torch function itself, so torch has put the mode aside while it runs
            _push_mode(self._mode)
            frame.opened_mode = True
            self._recomputing.add(threading.get_ident())
        if frame.operator is None or not torch.is_grad_enabled():
            return None
        place = self._place(frame, frame.operator)
        if not place.backward or getattr(module, "inplace", False):  # an in-place operand stays itself
            return None
        index = self.scope.calls.get((frame.path, frame.operator), 0)
        return self._watch_gradients((place,), index, args, unless=frame)

    def _module_ends(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not self._mine(module, args):
            return None
        frame = self.scope.running(module)
        if frame is None:
            return None
        try:
            return self._show_module(frame, args, output)
        finally:
            self.scope.leave(module)
            if frame.opened_mode:
                _remove(self._mode)
                self._recomputing.discard(threading.get_ident())

    def _show_module(self, frame: Frame, args: Any, output: Any) -> Any:
        """Shows what a hand-written operator gives; it still runs, so that the value belongs to its pass."""
        if frame.operator is None or frame.spelled or not isinstance(output, Tensor):
            return None
        places = (self._place(frame, frame.operator),)
        if self._shows_operands:
            self._show_operands(places, None, args, {})
        return self._show(places, output, owned=False)

    # --- functions ----------------------------------------------------------------------------------------------

    def call(self, operator: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Computes one operator and shows its value, if it is a place of ours."""
        frame = self.scope.top
        if (frame is None and not self._loose) or (operator == "residual" and not _is_residual(frame, args)):
            return function(*args, **kwargs)
        if _under_compile():
            raise compiled(frame.module if frame else None)
        if OPERATORS[operator].product and frame is not None and _uses_own_parameter(frame.module, args):
            operator = "linear"
        if operator == "attention" and self._wants_steps(frame):
            return self._attention_in_steps(frame, function, args, kwargs)
        places = self._places_of(frame, operator, args)
        if self._shows_operands:
            self._show_operands(places, function, args, kwargs)
        if torch.is_grad_enabled() and any(place.backward for place in places):
            args, kwargs = self._watch_operands(frame, places, function, args, kwargs)
        value = function(*args, **kwargs)
        if frame is not None:
            frame.spelled = (
                frame.spelled
                or operator == frame.operator
                or (operator.endswith("_norm") and (frame.operator or "").endswith("_norm"))
            )
            if operator == "softmax":
                frame.softmax = value.shape
        if not isinstance(value, Tensor):
            return value
        inplace = any(value is given for given in (*args[:1], kwargs.get("out")))
        shown = self._show(places, value, owned=not inplace)
        return value.copy_(shown) if inplace and shown is not value else shown

    def norm_parameters(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a function inside a hand-written norm, with the norm's weight watched for its gradient."""
        frame = self.scope.top
        if frame is None or frame.operator is None or not torch.is_grad_enabled():
            return args, kwargs
        own = {id(parameter) for parameter in frame.module.parameters(recurse=False) if parameter.requires_grad}
        place = self._place(frame, frame.operator)
        if not place.backward or not any(id(_stands_for(given)) in own for given in args):
            return args, kwargs
        index = self.scope.calls.get((frame.path, frame.operator), 0)
        return tuple(
            self._watch_parameter((place,), index, given, part=1 + position, unless=frame)
            if id(_stands_for(given)) in own
            else given
            for position, given in enumerate(args)
        ), kwargs

    def note_kernel(self, kernel: Callable[..., Any], operators: tuple[str, ...]) -> None:
        """Remembers a fused kernel that hides operators."""
        if (frame := self.scope.top) is not None:
            self.hidden[frame.path, getattr(kernel, "__name__", str(kernel))] = operators

    # --- places -------------------------------------------------------------------------------------------------

    def _place(self, frame: Frame | None, operator: str) -> _Place:
        layer = self.scope.layer_of(frame, operator)
        path = frame.path if frame is not None else ""
        place = self._places.get((path, operator, layer))
        if place is None:
            wants = self.observer.wants
            place = _Place(
                layer, operator, path, wants(layer, operator, path, "forward"), wants(layer, operator, path, "backward")
            )
            self._places[path, operator, layer] = place
        return place

    def _places_of(self, frame: Frame | None, operator: str, args: tuple[Any, ...]) -> tuple[_Place, ...]:
        """The places this value belongs to: attention's second product is the attention's value too."""
        if OPERATORS[operator].product and frame is not None and frame.softmax is not None:
            operand = args[0] if args else None
            if isinstance(operand, Tensor) and _same_rows(operand.shape, frame.softmax):
                frame.softmax = None
                return self._place(frame, "attention"), self._place(frame, operator)
        return (self._place(frame, operator),)

    def _show(self, places: tuple[_Place, ...], value: Tensor, *, owned: bool) -> Tensor:
        """Shows a value once, whatever the number of its places, and counts the calls."""
        calls = [(place, self.scope.count(place.module, place.operator)) for place in places]
        sites = tuple(Site(at.layer, at.operator, at.module, index) for at, index in calls if at.forward)
        if not sites:
            return value
        return self.observer.forward(sites, value, step=self.scope.step, owned=owned)

    def _show_operands(
        self, places: tuple[_Place, ...], function: Callable[..., Any] | None, args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Shows what a value will be computed from; the call is counted when the value is shown."""
        count = self.scope.calls.get
        sites = tuple(
            Site(at.layer, at.operator, at.module, count((at.module, at.operator), 0)) for at in places if at.forward
        )
        if sites:
            operands = _operands(function, args, kwargs)
            self.observer.before(sites, operands, step=self.scope.step)  # type: ignore[attr-defined]

    # --- gradients ----------------------------------------------------------------------------------------------

    def _watch_operands(
        self,
        frame: Frame | None,
        places: tuple[_Place, ...],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        path = frame.path if frame is not None else ""
        wanted = tuple(place for place in places if place.backward)
        index = self.scope.calls.get((path, wanted[0].operator), 0)
        if kwargs.get("inplace") or getattr(function, "__name__", "").endswith("_"):
            return (
                args[0],
                *self._watch_gradients(wanted, index, args[1:]),
            ), kwargs  # an in-place operand stays itself
        watched: tuple[tuple[Any, ...], dict[str, Any]] = self._watch_gradients(wanted, index, (args, kwargs))
        return watched

    def _watch_gradients(
        self, places: tuple[_Place, ...], index: int, operands: Any, *, unless: Frame | None = None
    ) -> Any:
        parts = _counter()
        return tree_map(
            lambda operand: self._watch_gradient(places, index, operand, part=next(parts), unless=unless), operands
        )

    def _watch_gradient(
        self, places: tuple[_Place, ...], index: int, operand: Any, *, part: int, unless: Frame | None = None
    ) -> Any:
        """The operand, its gradient booked here; `unless` the frame's operator turns out to be spelled inside."""
        if not isinstance(operand, Tensor) or not operand.requires_grad or not operand.is_floating_point():
            return operand
        place, step = places[0], self.scope.step
        site = Site(place.layer, place.operator, place.module, index, "backward")

        def visit(grad: Tensor) -> Tensor:
            if not self.active or (unless is not None and unless.spelled):
                return grad
            return self.observer.backward(site, grad, step=step, part=part)

        return visit_gradient(operand, visit)

    def _watch_parameter(
        self, places: tuple[_Place, ...], index: int, parameter: Tensor, *, part: int, unless: Frame
    ) -> Tensor:
        """The parameter, watched; it says what it stands for, so that a watch outside this one knows it again."""
        watched: Tensor = self._watch_gradient(places, index, parameter, part=part, unless=unless)
        watched.stands_for = _stands_for(parameter)  # type: ignore[attr-defined]
        return watched

    # --- attention ----------------------------------------------------------------------------------------------

    def _wants_steps(self, frame: Frame | None) -> bool:
        places = (self._place(frame, "matmul"), self._place(frame, "softmax"))
        return any(place.forward or place.backward for place in places)

    def _attention_in_steps(self, frame: Frame | None, fused: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Attention with its products and softmax in view.

        Where only gradients are wanted there, the value stays the fused kernel's, bit for bit; but not if another watch
        stands outside this one, which must see every value once.
        """
        self._compare_steps(frame, fused, args, kwargs)
        wanted = any(self._place(frame, step).forward for step in ("matmul", "softmax", "attention"))
        if wanted or any(isinstance(mode, _Mode) for mode in _mode_stack()):
            return attention_in_steps(self.call, *args, **kwargs)
        with torch.random.fork_rng(enabled=bool(kwargs.get("dropout_p"))):
            value = fused(*args, **kwargs)
        return take_value(attention_in_steps(self.call, *args, **kwargs), value)

    def _compare_steps(self, frame: Frame | None, fused: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Measures, on the first row of the first call, how far the steps are from the kernel."""
        path = frame.path if frame is not None else ""
        if path in self.steps_difference or kwargs.get("dropout_p"):
            return
        args, kwargs = tree_map(partial(_first_row, of=args[0].size(0)), (args, kwargs))
        with torch.no_grad(), torch._C.DisableTorchFunction():  # not to be seen by a watch outside this one
            difference = attention_in_steps(plain_call, *args, **kwargs) - fused(*args, **kwargs)
            self.steps_difference[path] = difference.abs().max()


class _Mode(TorchFunctionMode):
    """The thread-local half of a watch: every torch function called on this thread passes here."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._spellings = spellings()
        self._kernels = fused_kernels()

    @property
    def is_open(self) -> bool:
        """False once the watch was closed, wherever that was."""
        return self._watch.active

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        watch, kwargs = self._watch, kwargs or {}
        if not watch.active:
            return func(*args, **kwargs)
        operator = self._spellings.get(func)
        if operator is not None:
            return watch.call(operator, func, args, kwargs)
        if func in self._kernels:
            watch.note_kernel(func, self._kernels[func])
        args, kwargs = watch.norm_parameters(args, kwargs)
        return func(*args, **kwargs)


def _first_row(given: Any, *, of: int) -> Any:
    """The first row of a batched tensor; anything else as it is."""
    return given[:1] if isinstance(given, Tensor) and given.ndim > 2 and given.size(0) == of else given


def _mode_stack() -> list[TorchFunctionMode]:
    stack: list[TorchFunctionMode] = _get_current_function_mode_stack()
    return stack


def _push_below(mode: TorchFunctionMode) -> None:
    """Puts a mode under all others of this thread but the one of `set_default_device`, which insists on the bottom."""
    default_device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    above = []
    while (stack := _mode_stack()) and stack[-1] is not default_device:
        above.append(_pop_mode())
    for other in (mode, *reversed(above)):
        _push_mode(other)


def _sweep(*, unless: TorchFunctionMode | None = None) -> None:
    """Takes the modes of closed watches off this thread's stack, also those that another thread has closed."""
    kept = [mode for mode in _mode_stack() if mode is unless or not isinstance(mode, _Mode) or mode.is_open]
    while _mode_stack():
        _pop_mode()
    for mode in kept:
        _push_mode(mode)


def _remove(mode: TorchFunctionMode) -> None:
    """Takes a mode off this thread's stack, wherever it stands there."""
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


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


def _counter() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _stands_for(value: Any) -> Any:
    """The parameter that a watched tensor stands for, or the value itself."""
    return getattr(value, "stands_for", value) if isinstance(value, Tensor) else value


def _is_residual(frame: Frame | None, args: tuple[Any, ...]) -> bool:
    """Two hidden-state-shaped tensors added directly in a block's forward."""
    if frame is None or not frame.is_block or len(args) < 2:
        return False
    return all(
        isinstance(operand, Tensor)
        and operand.is_floating_point()
        and (
            frame.hidden is None
            or (operand.numel() == frame.hidden.numel() and operand.shape[-1:] == frame.hidden[-1:])
        )
        for operand in args[:2]
    )


def _same_rows(operand: torch.Size, softmax: torch.Size) -> bool:
    """True if the operand holds the softmax's rows, heads merged into the batch or not."""
    return len(operand) > 2 and operand[-2:] == softmax[-2:] and operand.numel() == softmax.numel()


def _operands(function: Callable[..., Any] | None, args: Any, kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """The tensors that a call is computed from, parameters left out, factors before an addend."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if getattr(function, "__name__", "").startswith(("addmm", "baddbmm")):
        given.append(given.pop(0))
    return tuple(operand for operand in given if not isinstance(operand, nn.Parameter))


def _uses_own_parameter(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """True if an operand is, or is a view of, a parameter of the module itself."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters(recurse=False) if not p.is_meta}
    return bool(own) and any(
        isinstance(operand, Tensor) and operand.untyped_storage().data_ptr() in own for operand in args
    )


def _under_compile() -> bool:
    """True while dynamo traces this code, or runs it as the eager rest of a compiled call."""
    return torch.compiler.is_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def compiled(module: nn.Module | None) -> CompiledModel:
    """The refusal of compiled code, with the way out."""
    name = type(module).__name__ if module is not None else "this function"
    return CompiledModel(
        f"{name} is compiled, noise cannot reach inside; inject the original module (`model._orig_mod`), or run "
        'under torch.compiler.set_stance("force_eager")'
    )


def refuse_compiled(model: nn.Module) -> None:
    """Raises for a model with compiled or scripted parts, unless torch is told to run them eagerly."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CompiledModel(
                f"{type(module).__name__} is scripted, noise cannot reach inside; use the Python module"
            )
        if ("_orig_mod" in module._modules or module._compiled_call_impl is not None) and not _forced_eager():
            raise compiled(getattr(module, "_orig_mod", module))


def _forced_eager() -> bool:
    """True if the user has told torch to run compiled code eagerly; asked only where dynamo is loaded already."""
    from torch._dynamo import eval_frame

    return bool(eval_frame._stance.stance == "force_eager")
