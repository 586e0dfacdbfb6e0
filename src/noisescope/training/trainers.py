"""The Trainer that runs a callback: found, and for as long as it trains given a few methods that do more.

A Trainer does not tell its callbacks who it is, and does not tell them that training has raised. So noise must not be
open from one event to another: it is opened and closed inside `training_step`, which holds the forward and the backward
pass and nothing else (decision 11). The methods are put on that one object; its class and its model are not touched.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ..errors import InputError

__all__ = ["Shadows", "running_trainer"]

More: TypeAlias = Callable[..., Any]
"""called as more(original method, *args, **kwargs) in place of the method"""

_ABSENT = object()


def running_trainer(callback: object) -> tuple[Any, CodeType]:
    """The Trainer whose loop has called this callback, and the code of that loop."""
    for frame in _frames():
        trainer = frame.f_locals.get("self")
        listed = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
        if any(one is callback for one in listed) and hasattr(trainer, "training_step"):
            return trainer, frame.f_code
    raise InputError(
        "NoiseCallback: no Trainer found that runs it; it works in a transformers Trainer (and TRL's), in a loop of "
        "your own use NoisyTraining"
    )


class Shadows:
    """Methods of one object that do more, until they are taken back.

    They do it only while `loop` runs: after an exception, which nobody tells us of, they are the plain methods.
    """

    def __init__(self, owner: object, loop: CodeType, methods: Mapping[str, More]) -> None:
        self._owner, self._loop = owner, loop
        self._before = {name: vars(owner).get(name, _ABSENT) for name in methods}
        for name, more in methods.items():
            vars(owner)[name] = self._shadow(getattr(owner, name), more)

    def _shadow(self, original: Callable[..., Any], more: More) -> Callable[..., Any]:
        @wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if any(frame.f_code is self._loop for frame in _frames()):
                return more(original, *args, **kwargs)
            return original(*args, **kwargs)

        return method

    def take_back(self) -> None:
        """The methods are what they were."""
        for name, before in self._before.items():
            if before is _ABSENT:
                vars(self._owner).pop(name, None)
            else:
                vars(self._owner)[name] = before
        self._before = {}


def _frames() -> Iterator[FrameType]:
    """The running calls, from the innermost out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
