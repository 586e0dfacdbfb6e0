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
        if _lists(trainer, callback) and hasattr(trainer, "training_step"):
            return trainer, frame.f_code
    raise InputError(
        "NoiseCallback: no Trainer found that runs it; it works in a transformers Trainer (and TRL's), in a loop of "
        "your own use NoisyTraining"
    )


class Shadows:
    """Methods of a Trainer that do more for a callback, until they are taken back.

    They do it only while the Trainer's `loop` runs and has the callback: after an exception, which nobody tells us of,
    they are the plain methods, also in a training from which the callback was removed.
    """

    def __init__(self, owner: object, loop: CodeType, callback: object, methods: Mapping[str, More]) -> None:
        self._owner, self._loop, self._callback = owner, loop, callback
        self._before = {name: vars(owner).get(name, _ABSENT) for name in methods}
        for name, more in methods.items():
            vars(owner)[name] = self._shadow(getattr(owner, name), more)

    def _shadow(self, original: Callable[..., Any], more: More) -> Callable[..., Any]:
        @wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            return more(original, *args, **kwargs) if self.are_on else original(*args, **kwargs)

        return method

    @property
    def are_on(self) -> bool:
        """True inside the loop."""
        return _lists(self._owner, self._callback) and any(
            frame.f_code is self._loop and frame.f_locals.get("self") is self._owner for frame in _frames()
        )

    def take_back(self) -> None:
        """The methods are what they were."""
        for name, before in self._before.items():
            if before is _ABSENT:
                vars(self._owner).pop(name, None)
            else:
                vars(self._owner)[name] = before
        self._before = {}


def _lists(trainer: object, callback: object) -> bool:
    """True if that is a Trainer which has the callback."""
    listed = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    return any(one is callback for one in listed)


def _frames() -> Iterator[FrameType]:
    """The running calls, from the innermost out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
