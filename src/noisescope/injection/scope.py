"""Where execution is at this moment: which module of which layer, in which forward pass, at which call.

A stack of frames, pushed and popped as modules start and finish. Nothing outside a block ever has a block's number:
a frame's layer comes from the block it runs inside, else from its own role, else from whether blocks ran before it.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TypeAlias
from weakref import ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointFunction

from ..sites import Layout, Site
from ..specs import Layer

__all__ = ["Frame", "Scope", "by_keyword", "in_backward", "is_probing", "probing"]

Calls: TypeAlias = dict[tuple[str, str], int]

Mark: TypeAlias = tuple[str, StorageWeakRef, int]
"""a module and the memory of its input; as long as the mark exists no other storage is mistaken for that one"""

_OURS = __name__.partition(".")[0] + "."

MARKS = 2**9
"""module starts remembered before those whose input is gone are forgotten"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a scope knows of one module of a model, without keeping it alive."""

    module: "ref[nn.Module]"
    path: str
    role: Layer | None
    """the layer the layout gives it, before it is known what it runs inside"""
    home: int | None
    """the block it is part of, if it is part of exactly one"""
    operator: str | None
    is_root: bool
    is_stack: bool
    has_blocks: bool
    """whether the model has any"""


@dataclass(slots=True)
class Frame:
    """One running module."""

    module: nn.Module
    path: str
    layer: Layer | None
    entry: Entry
    caller: FrameType | None
    """the Python call that runs it"""
    is_block: bool = False
    hidden: torch.Size | None = None
    """shape of the hidden state that entered, for a block"""
    operator: str | None = None
    """the operator this module is by itself (a hand-written norm or activation)"""
    spelled: bool = False
    """True once that operator was seen as a function inside, so that the module is not counted again"""
    softmax: torch.Size | None = None
    """shape of the last softmax computed here: a product with it is attention's second"""
    outer: "Pass | None" = None
    """the pass to return to, for a module that is being recomputed in a backward pass"""
    guessed: bool = False
    """True if nothing told which run of it is being recomputed, so that its last one was taken"""
    opened_mode: bool = False
    """True if the function mode had to be entered again for this frame"""

    def note(self, operator: str, value: object) -> None:
        """An operator was computed as a function directly in this module."""
        if self.operator is not None:
            both_norms = operator.endswith("_norm") and self.operator.endswith("_norm")
            self.spelled = self.spelled or operator == self.operator or both_norms
        if operator == "softmax" and isinstance(value, Tensor):
            self.softmax = value.shape


@dataclass(slots=True)
class Pass:
    """One forward pass of the model: its number, and what was called in it so far."""

    step: int
    log: list[tuple[str, str]] = field(default_factory=list)
    """module path and operator of every call, in order"""
    calls: Calls = field(default_factory=dict)
    past_blocks: bool = False
    recomputable: bool = True
    """False if no gradient can ever be asked for, so that nothing of it can run again"""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a module started: in which pass, after how many calls."""

    run: Pass
    length: int
    past_blocks: bool

    def again(self) -> Pass:
        """The pass as it was then."""
        log = self.run.log[: self.length]
        return Pass(self.run.step, log, dict(Counter(log)), self.past_blocks)


class Scope:
    """The stack of running modules, the step, and the calls counted within it.

    `step` counts forward passes of the model: calls that start while no module of it is running. What gradient
    checkpointing runs again in the backward pass, be it a block, a part of one or the whole model, is no new step: it
    gets the step and the call counts of its first run back, found by the memory of its input, which checkpointing
    keeps alive. Of two pending passes over one and the same input the last is meant.
    """

    def __init__(self, first_step: int = 0) -> None:
        self.frames: list[Frame] = []
        self.run = Pass(first_step - 1)
        self.blocks = 0
        """number of blocks of the largest model added"""
        self._known: dict[int, Entry] = {}
        """by the module's `id`, which another may have once it is gone"""
        self._rewound = 0
        """frames that are being recomputed with a pass of their own"""
        self._marks: dict[Mark, Moment] = {}
        self._last: dict[str, Moment] = {}
        """module path -> the start of its last run in a forward pass"""
        self._replay: Pass | None = None
        """the last recomputation, which may go on with another module"""
        self._limit = MARKS

    @property
    def step(self) -> int:
        """The number of the forward pass that runs or is recomputed now, else of the last one."""
        return self.run.step

    @property
    def calls(self) -> Calls:
        """How often each operator of each module was called in it."""
        return self.run.calls

    def add(self, layout: Layout) -> None:
        """Makes a model's modules known, for as long as they live."""
        self.blocks = max(self.blocks, len(layout.blocks))
        self._known = {number: entry for number, entry in self._known.items() if entry.module() is not None}
        for module, path in layout.paths.items():
            self._known[id(module)] = Entry(
                ref(module),
                path,
                layout.layer.get(module),
                layout.home.get(module),
                layout.operator.get(module),
                is_root=module is layout.root,
                is_stack=module in layout.stacks,
                has_blocks=bool(layout.blocks),
            )

    def knows(self, module: nn.Module) -> bool:
        """True if the module belongs to a model that was added."""
        return self._entry(module) is not None

    def _entry(self, module: nn.Module) -> Entry | None:
        entry = self._known.get(id(module))
        return entry if entry is not None and entry.module() is module else None

    def remembers(self, module: nn.Module, args: tuple[object, ...]) -> bool:
        """True if this module has run before on this very input: it is being recomputed."""
        entry = self._entry(module)
        return entry is not None and _mark(entry.path, args) in self._marks

    @property
    def recomputing(self) -> bool:
        """True while modules run again for their gradient: what they compute was counted the first time."""
        return self._rewound > 0

    @property
    def top(self) -> Frame | None:
        """The innermost running module, as far as is known."""
        return self.frames[-1] if self.frames else None

    @property
    def current(self) -> Frame | None:
        """The innermost running module, for the thread that runs it: what an interrupt ended is forgotten."""
        while self.frames and not _is_calling(self.frames[-1].caller):
            self._pop()
        return self.top

    def enter(self, module: nn.Module, args: tuple[object, ...]) -> Frame | None:
        """Pushes a frame for a module that starts; None if it is not one of ours."""
        entry = self._entry(module)
        if entry is None:
            return None
        around, backward = self.current, in_backward()
        frame = Frame(module, entry.path, None, entry, _caller(), operator=entry.operator)
        args = args or tuple(value for value in by_keyword(frame.caller).values() if isinstance(value, Tensor))
        if backward:
            self._rewind(frame, args)
        elif around is None:
            self.start_step(args)
        frame.is_block = isinstance(entry.role, int)
        frame.layer = entry.role if frame.is_block else self._inherited(entry)
        self._remember(frame, args)
        if frame.is_block:
            self.run.past_blocks = True
            frame.hidden = args[0].shape if args and isinstance(args[0], Tensor) else None
        self.frames.append(frame)
        return frame

    def begin(self, first_step: int = 0) -> None:
        """The next forward pass has that number."""
        self.run = Pass(first_step - 1)

    def start_step(self, args: tuple[object, ...]) -> None:
        """The next forward pass begins."""
        self.run = Pass(self.run.step + 1, recomputable=_may_be_recomputed(args))

    def running(self, module: nn.Module) -> Frame | None:
        """The frame of a module that has started and not ended."""
        if self.frames and self.frames[-1].module is module:
            return self.frames[-1]
        return next((frame for frame in reversed(self.frames) if frame.module is module), None)

    def leave(self, frame: Frame) -> None:
        """Pops a module's frame, and any that an exception left above it."""
        while self._pop() is not frame:
            pass

    def _pop(self) -> Frame:
        frame = self.frames.pop()
        if frame.outer is not None:
            self._rewound -= 1
            self._replay, self.run = self.run, frame.outer
        return frame

    def count(self, path: str, operator: str) -> int:
        """The index of this call of the operator by that module, counting it."""
        call, calls = (path, operator), self.run.calls
        index = calls.get(call, 0)
        if is_probing():
            asked: dict[tuple[str, str], int] = _QUESTIONS.calls
            return asked.get(call, max(0, index - 1))
        calls[call] = index + 1
        if self.frames and self.run.recomputable:  # outside modules there may be any number of calls
            self.run.log.append(call)
        return index

    def layer_of(self, frame: Frame | None, operator: str) -> Layer | None:
        """The layer that a value computed now belongs to."""
        if frame is None or not frame.entry.has_blocks:
            return None
        if frame.layer is not None:
            return frame.layer
        if not self.run.past_blocks:
            return "embed"
        return "final_norm" if operator.endswith("_norm") and frame.entry.is_stack else "head"

    def _inherited(self, entry: Entry) -> Layer | None:
        around = self.frames[-1].layer if self.frames else entry.home
        return around if isinstance(around, int) or entry.role is None else entry.role

    # --- recomputation ------------------------------------------------------------------------------------------

    def _remember(self, frame: Frame, args: tuple[object, ...]) -> None:
        if not self.run.recomputable:
            return
        moment = Moment(self.run, len(self.run.log), self.run.past_blocks)
        if not self.recomputing:
            self._last[frame.path] = moment
        if (mark := _mark(frame.path, args)) is None:
            return
        if not (self.recomputing and mark in self._marks):
            self._marks[mark] = moment
        if len(self._marks) > self._limit:
            self._marks = {mark: moment for mark, moment in self._marks.items() if not mark[1].expired()}
            self._limit = max(MARKS, 2 * len(self._marks))

    def _rewind(self, frame: Frame, args: tuple[object, ...]) -> None:
        """Goes back to when this module ran on this input; else on with the recomputation; else to its last run."""
        first = next((other for other in self.frames if other.outer is not None), None)
        if first is not None and not first.guessed:
            return
        mark = _mark(frame.path, args)
        found = self._marks.get(mark) if mark is not None else None
        if first is None:
            frame.outer = self.run
            self._rewound += 1
            self.run = found.again() if found is not None else self._guess(frame)
        elif found is not None:
            first.guessed, self.run = False, found.again()

    def _guess(self, frame: Frame) -> Pass:
        last = self._last.get(frame.path)
        if last is None:
            return Pass(self.run.step)
        if self._replay is not None and len(self._replay.log) == last.length:
            return self._replay
        frame.guessed = True
        return last.again()


def _mark(path: str, args: tuple[object, ...]) -> Mark | None:
    first = args[0] if args else None
    if not isinstance(first, Tensor):
        return None
    with torch._C.DisableTorchFunction():
        return path, StorageWeakRef(first.untyped_storage()), int(first.storage_offset())


def _caller() -> FrameType | None:
    """The Python call that shows us a module's start: it will run the module next."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    return frame


def by_keyword(caller: FrameType | None) -> dict[str, object]:
    """What a module is given by keyword, which torch does not tell its process-wide hooks."""
    given = caller.f_locals.get("kwargs") if caller is not None else None
    return dict(given) if isinstance(given, dict) else {}


def _is_calling(caller: FrameType | CodeType | None) -> bool:
    """True if that Python call, or one of that code, has not ended: we were called from inside it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not caller and frame.f_code is not caller:
        frame = frame.f_back
    return frame is not None


def _may_be_recomputed(args: tuple[object, ...]) -> bool:
    """True if what starts now may run again in a backward pass."""
    if torch.is_inference_mode_enabled():
        return False
    if torch.is_grad_enabled() or any(isinstance(given, Tensor) and given.requires_grad for given in args):
        return True
    return _is_calling(CheckpointFunction.forward.__code__)  # which switches gradients off at first


_QUESTIONS = threading.local()


@contextmanager
def probing(sites: Iterable[Site] = ()) -> Iterator[None]:
    """Calls made inside, on this thread, are counted nowhere: they ask again about the call of these sites.

    Other operators of other modules are taken for the call that was counted last.
    """
    before = getattr(_QUESTIONS, "calls", None)
    _QUESTIONS.calls = {(site.module, site.operator): site.call for site in sites}
    try:
        yield
    finally:
        _QUESTIONS.calls = before


def is_probing() -> bool:
    """True inside `probing`."""
    return getattr(_QUESTIONS, "calls", None) is not None


def in_backward() -> bool:
    """True while the autograd engine runs a backward pass on this thread."""
    return torch._C._current_graph_task_id() != -1
