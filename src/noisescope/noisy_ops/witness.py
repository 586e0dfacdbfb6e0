"""The proof that a process had noise: one small JSON file of its own, in the directory of `NOISESCOPE_COUNTS`.

    {"schema": "noisescope counts", "version": 1, "pid": 4711, "host": "node-3",
     "settings": {"error_scale": 0.05, "error_type": "relative_gaussian", ...},
     "forward": 216, "backward": 0,
     "layers": {"0": {"forward": 72, "backward": 0}, ...}, "operators": {"linear": {...}, ...},
     "doses": {"relative_gaussian": 0.0499}}

Workers are killed more often than they end, so the file is there from the moment noise is switched on, is written again
at the first disturbed value, then once a second while values are disturbed, and at exit. The settings are those of the
environment. The counts are those that all threads share: not those of a thread that calls `enable_noisy_ops` itself.
"""

import atexit
import os
import re
import secrets
import socket
from dataclasses import fields
from pathlib import Path
from threading import Lock
from time import monotonic

import torch

from .. import store
from ..errors import StoreError
from ..store.encoding import encode
from .counts import Counts
from .running import log
from .settings import Settings

__all__ = ["SCHEMA", "VERSION", "Witness", "keep_witness"]

SCHEMA, VERSION = "noisescope counts", 1
PAUSE_S = 1.0


def keep_witness(directory: Path, settings: Settings, counts: Counts) -> None:
    """From here on a file tells what this process disturbs; StoreError if the directory cannot be written to."""
    witness = Witness(Path(os.path.expanduser(directory)).absolute(), settings, counts)
    store.make_directory(witness.directory)
    witness.write()
    counts.booked = witness.tell
    atexit.register(witness.finish)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=witness.start_over)


class Witness:
    """Writes the file of one process, for all its threads."""

    def __init__(self, directory: Path, settings: Settings, counts: Counts) -> None:
        self.directory, self.settings, self.counts = directory, settings, counts
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        self.file = self.directory / _name()
        self._due = 0.0
        self._turn = Lock()

    def write(self) -> None:
        """The file as of now."""
        found = {
            "schema": SCHEMA,
            "version": VERSION,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "settings": {field.name: getattr(self.settings, field.name) for field in fields(self.settings)},
            **self.counts.plain(),
        }
        store.atomic_write(self.file, encode(found).encode())

    def tell(self) -> None:
        """Writes, if it is time to; a clock is read if not."""
        if monotonic() < self._due or _capturing() or not self._turn.acquire(blocking=False):
            return
        try:
            self._try_to_write()
            self._due = monotonic() + PAUSE_S
        finally:
            self._turn.release()

    def finish(self) -> None:
        """Writes what was disturbed since it was last written."""
        with self._turn:
            self._try_to_write()

    def start_over(self) -> None:
        """In a forked child: a file of its own, and counts from zero."""
        self.counts.reset()
        self._begin()
        self.finish()

    def _try_to_write(self) -> None:
        try:
            self.write()
        except StoreError as error:  # a full disk is no reason to end a training
            if not self._failed:
                log.warning("%s; noise is still on, but this process cannot prove it", error)
            self._failed = True


def _name() -> str:
    """A name that no other process has: containers may share a host's name, and each begins its pids at 1."""
    host = re.sub(r"[^A-Za-z0-9-]", "_", socket.gethostname())[:64]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}.json"


def _capturing() -> bool:
    """True while a CUDA graph is recorded, which reading a dose from the device would break."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
