"""The only room that writes files: whole ones (`files`), and the journal of a run (`journal`). It imports no torch."""

from .files import Spill, atomic_directory, atomic_write, lock, make_directory, read_whole, remove, sha256, sweep
from .journal import Journal

__all__ = [
    "Journal",
    "Spill",
    "atomic_directory",
    "atomic_write",
    "lock",
    "make_directory",
    "read_whole",
    "remove",
    "sha256",
    "sweep",
]
