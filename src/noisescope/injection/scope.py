"""Where execution is at this moment: which module of which layer, in which forward pass, at which call.

A stack of frames, pushed and popped as modules start and finish. Nothing outside a block ever has a block's number:
a frame's layer comes from the block it runs inside, else from its own role, else from whether blocks ran before it.
"""

from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..sites import Layout
from ..specs import Layer

__all__ = ["Frame", "Scope", "in_backward"]

Calls: TypeAlias = dict[tuple[str, str], int]

MARKS = 2**14
"""block entries remembered for recomputation; beyond that the oldest are forgotten"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a scope knows of one module of a model: all of it plain values, so that no model is kept alive."""

    path: str
    role: Layer | None
    """the layer the layout gives it, before it is known what it runs inside"""
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
    is_block: bool = False
    hidden: torch.Size | None = None
    """shape of the hidden state that entered, for a block"""
    operator: str | None = None
    """the operator this module is by itself (a hand-written norm or activation)"""
    spelled: bool = False
    """True once that operator was seen as a function inside, so that the module is not counted again"""
    softmax: torch.Size | None = None
    """shape of the last softmax computed here: a product with it is attention's second"""
    outer: tuple[int, Calls] | None = None
    """step and calls to return to, for a block that is being recomputed in a backward pass"""
    opened_mode: bool = False
    """True if the function mode had to be entered again for this frame"""


class Scope:
    """The stack of running modules, the step, and the calls counted within it.

    `step` counts forward passes of the model: calls that start while no module of it is running. A block that
    gradient checkpointing runs again in the backward pass is no new step: it gets the step and the call counts of
    its first run back, found by the memory of its input, which checkpointing keeps alive.
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.step = -1
        self.calls: Calls = {}
        self.past_blocks = False
        self.blocks = 0
        """number of blocks of the largest model added"""
        self._known: WeakKeyDictionary[nn.Module, Entry] = WeakKeyDictionary()
        self._marks: dict[tuple[str, int], tuple[int, Calls]] = {}

    def add(self, layout: Layout) -> None:
        """Makes a model's modules known, for as long as they live."""
        self.blocks = max(self.blocks, len(layout.blocks))
        for module, path in layout.paths.items():
            self._known[module] = Entry(
                path,
                layout.layer.get(module),
                layout.operator.get(module),
                is_root=module is layout.root,
                is_stack=module in layout.stacks,
                has_blocks=bool(layout.blocks),
            )

    def knows(self, module: nn.Module) -> bool:
        """True if the module belongs to a model that was added."""
        return module in self._known

    def remembers(self, module: nn.Module, args: tuple[object, ...]) -> bool:
        """True if this block has run before on this very input: it is being recomputed."""
        entry = self._known.get(module)
        return entry is not None and _mark(entry.path, args) in self._marks

    @property
    def recomputing(self) -> bool:
        """True while a block runs again for its gradient: what it computes was counted the first time."""
        return bool(self.frames) and self.frames[0].outer is not None

    @property
    def top(self) -> Frame | None:
        """The innermost running module."""
        return self.frames[-1] if self.frames else None

    def enter(self, module: nn.Module, args: tuple[object, ...]) -> Frame | None:
        """Pushes a frame for a module that starts; None if it is not one of ours."""
        entry = self._known.get(module)
        if entry is None:
            return None
        if entry.is_root:
            self.frames.clear()  # frames that an interrupt left behind
        frame = Frame(module, entry.path, None, entry, operator=entry.operator)
        frame.is_block = isinstance(entry.role, int)
        frame.layer = entry.role if frame.is_block else self._inherited(entry.role)
        if not self.frames and not in_backward():
            self._start_step()
        if frame.is_block:
            self._enter_block(frame, args)
        self.frames.append(frame)
        return frame

    def leave(self, module: nn.Module) -> Frame | None:
        """Pops the module's frame, and any that an exception left above it."""
        if not any(frame.module is module for frame in self.frames):
            return None
        while True:
            frame = self.frames.pop()
            if frame.outer is not None:
                self.step, self.calls = frame.outer
            if frame.module is module:
                return frame

    def count(self, path: str, operator: str) -> int:
        """The index of this call of the operator by that module, counting it."""
        index = self.calls.get((path, operator), 0)
        self.calls[path, operator] = index + 1
        return index

    def layer_of(self, frame: Frame | None, operator: str) -> Layer | None:
        """The layer that a value computed now belongs to."""
        if frame is None or not frame.entry.has_blocks:
            return None
        if frame.layer is not None:
            return frame.layer
        if not self.past_blocks:
            return "embed"
        return "final_norm" if operator.endswith("_norm") and frame.entry.is_stack else "head"

    def _inherited(self, own: Layer | None) -> Layer | None:
        around = self.frames[-1].layer if self.frames else None
        return around if isinstance(around, int) or own is None else own

    def _start_step(self) -> None:
        self.step += 1
        self.calls = {}
        self.past_blocks = False

    def _enter_block(self, frame: Frame, args: tuple[object, ...]) -> None:
        self.past_blocks = True
        if args and isinstance(args[0], Tensor):
            frame.hidden = args[0].shape
        mark = _mark(frame.path, args)
        if self.frames or not in_backward():
            prefix = frame.path + "."
            inside = {key: n for key, n in self.calls.items() if key[0] == frame.path or key[0].startswith(prefix)}
            self._marks.pop(mark, None)
            self._marks[mark] = (self.step, inside)
            if len(self._marks) > MARKS:
                del self._marks[next(iter(self._marks))]
        elif mark in self._marks:
            frame.outer = (self.step, self.calls)
            self.step, inside = self._marks[mark]
            self.calls = dict(inside)


def _mark(path: str, args: tuple[object, ...]) -> tuple[str, int]:
    first = args[0] if args else None
    return path, first.data_ptr() if isinstance(first, Tensor) else 0


def in_backward() -> bool:
    """True while the autograd engine runs a backward pass on this thread."""
    return torch._C._current_graph_task_id() != -1
