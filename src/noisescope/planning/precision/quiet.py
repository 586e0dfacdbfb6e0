"""Without what a compiled library prints on its own: HiGHS has lines for standard output that nothing switches off."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Standard output of the process goes nowhere until the block ends; what was printed before is out by then."""
    try:
        kept = os.dup(1)
    except OSError:  # there is none
        yield
        return
    with suppress(OSError, ValueError, AttributeError):  # a stream that is closed, or none
        sys.stdout.flush()
    _flush_compiled()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        _flush_compiled()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _flush_compiled() -> None:
    """What waits in the C library's buffer."""
    with suppress(OSError, AttributeError, TypeError):  # a system whose C library is not found like this
        ctypes.CDLL(None).fflush(None)
