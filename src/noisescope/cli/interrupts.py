"""Ctrl-C and SIGTERM: the first ends the run in order, the second at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from ..errors import Interrupted

__all__ = ["interruptible"]

_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def interruptible() -> Iterator[None]:
    """Both signals raise KeyboardInterrupt inside, and leave as Interrupted; a second one ends the process at once.

    A signal that whoever started this process has chosen to ignore stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # only there can signals be received
        yield
        return
    asked = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            _leave()
        asked = True
        raise KeyboardInterrupt

    taken = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in taken}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave() -> None:
    """Ends the process; nothing runs any more that would give the terminal back the cursor that the bars hid."""
    with suppress(OSError, ValueError, AttributeError):  # no terminal, or a stream that is closed or none
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)
    os._exit(Interrupted.exit_code)
