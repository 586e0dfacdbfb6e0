"""Ctrl-C and SIGTERM: the first ends the run in order, the second at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..errors import Interrupted

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Both signals raise KeyboardInterrupt inside, and leave as Interrupted; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be received
        yield
        return
    asked = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(Interrupted.exit_code)
        asked = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
