"""Files that are at all times absent, old or new; locks; scratch space.

    atomic_write(path, data)        one file, replaced whole
    atomic_directory(path)          a directory that appears with everything in it, or not at all
    lock(path)                      one process at a time; the lock of a dead one is free at once
    read_whole(path, most_bytes)    what a file of a sensible size holds
    sha256(path)                    its digest
    Spill(parent)                   values that do not fit in memory, for as long as the process lives

Nothing here knows what the bytes mean. What the system refuses (no space, no
permission, an I/O error) is one StoreError line about the file that was asked for, never a partial file.
"""

__all__ = [
    "Spill",
    "atomic_directory",
    "atomic_write",
    "lock",
    "make_directory",
    "read_whole",
    "remove",
    "sha256",
    "store_errors",
    "sweep",
    "write_all",
]

import errno
import glob
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import StoreError

_ADVICE = {
    errno.ENOSPC: "free some space or choose another directory",
    errno.EDQUOT: "free some space or choose another directory",
    errno.EACCES: "choose a directory you may write to",
    errno.EPERM: "choose a directory you may write to",
    errno.EROFS: "choose a directory you may write to",
}


def atomic_write(path: Path, data: bytes) -> None:
    """The file at path holds exactly data, also after a power cut; until then it holds what it held before.

    The directory must exist. An existing file is replaced: ask first where that matters.
    """
    temporary = _sibling(path)
    with store_errors(path):
        try:
            _write_new(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _fsync_directory(path.parent)


def make_directory(path: Path) -> Path:
    """The directory, made with its parents where it was absent."""
    with store_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def atomic_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """An empty directory to fill; on a clean exit it becomes path in one step, on an exception it is removed.

    If path is there by then, the existing one is kept and the new one dropped; with replace it is the other way round,
    and between the two steps of that there is none. An OSError raised while filling counts as a failed write of path.
    Files get the permissions of the umask, whoever created them.

    >>> with atomic_directory(target) as directory:      # doctest: +SKIP
    ...     model.save_pretrained(directory)
    """
    temporary = _sibling(path)
    with store_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            yield temporary
            _settle(temporary)
            if replace and path.is_dir() and not path.is_symlink():
                _exchange(temporary, path)
            else:
                _publish(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def lock(path: Path, *, wait: bool = True, waiting: Callable[[int | None], None] | None = None) -> Iterator[None]:
    """The lock file at path, held by this process alone until the block ends.

    When another process has it: with wait, waiting(its pid) is called once and the block starts when it is free;
    without, StoreError names the pid. The operating system releases the lock of a process that died, so a stale
    one never blocks. The lock file itself stays behind; only who holds it may remove it, because whoever opened it
    before finds, once the lock is free, that it has no name any more, and begins again with the one that has.
    """
    held = FileLock(str(path))
    owner = path.with_name(f"{path.name}.owner")
    with store_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _acquire(held, owner, wait=wait, waiting=waiting)
    try:
        with suppress(OSError):  # the pid is a courtesy to whoever waits; the lock holds without it
            owner.write_text(str(os.getpid()))
        yield
    finally:
        with suppress(OSError):
            owner.unlink(missing_ok=True)
        held.release()


def read_whole(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file; an OSError for what is no file, or larger than anything that is meant to be there.

    A pipe would wait for its writer and a device never end: neither is opened. The error's strerror says why.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory, expected a file")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is a pipe or a device, expected a file")
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        size = f"{most_bytes >> 20} MB" if most_bytes >> 20 else f"{most_bytes >> 10} kB"
        raise OSError(errno.EFBIG, f"is larger than {size}")
    return data


def sha256(path: Path) -> str:
    """The SHA-256 of the file's bytes, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with store_errors(path, "read"), path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Nothing at path any more, whether it was a file, a directory or already absent."""
    with store_errors(path, "remove"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """No half-written file or half-filled directory of path left by processes that were killed.

    Only for the holder of the lock of path: it alone knows that nobody is still at it.
    """
    for stale in path.parent.glob(glob.escape(_prefix(path)) + "*.tmp"):
        with suppress(StoreError):
            remove(stale)


def _prefix(path: Path) -> str:
    return f".{path.name[:40]}."  # cut, so that the temporary name stays legal where a long name just is


def _sibling(path: Path) -> Path:
    return path.with_name(f"{_prefix(path)}{secrets.token_hex(6)}.tmp")


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Data at the end of an open file, all of it on the disk; the system may take it in parts."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _settle(directory: Path) -> None:
    """Every file below directory is on the disk, with the permissions that the umask gave the directory."""
    mode = directory.stat().st_mode & 0o666
    for parent, _, names in os.walk(directory):
        for name in names:
            file = Path(parent, name)
            file.chmod(mode)
            _fsync(file, os.O_RDWR)
        _fsync_directory(Path(parent))


def _publish(temporary: Path, path: Path) -> None:
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    else:
        _fsync_directory(path.parent)


def _exchange(temporary: Path, path: Path) -> None:
    """The new directory in the place of the old one, which comes back if that fails, and is removed if not."""
    old = _sibling(path)
    os.rename(path, old)
    try:
        _publish(temporary, path)
    finally:
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, path)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_directory(path: Path) -> None:
    if os.name != "nt":  # Windows cannot open a directory, and orders its own metadata
        _fsync(path, os.O_RDONLY)


def _acquire(held: FileLock, owner: Path, *, wait: bool, waiting: Callable[[int | None], None] | None) -> None:
    try:
        held.acquire(timeout=0)
    except Timeout:
        pid = _pid(owner)
        if not wait:
            who = f"process {pid}" if pid else "another process"
            raise StoreError(f"{held.lock_file}: in use by {who}; wait for it to end") from None
        if waiting:
            waiting(pid)
        held.acquire(timeout=-1, poll_interval=0.1)


def _pid(owner: Path) -> int | None:
    try:
        return int(read_whole(owner, 100))
    except (OSError, ValueError):
        return None


@contextmanager
def store_errors(path: Path, verb: str = "write") -> Iterator[None]:
    """An OSError inside becomes one StoreError line: what was tried, on which file, and what helps."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        advice = _ADVICE.get(error.errno or 0)
        raise StoreError(f"cannot {verb} {path}: {reason}" + (f"; {advice}" if advice else "")) from error


class Spill:
    """A directory for values that do not fit in memory, removed when closed or forgotten.

    Nothing in it outlives the process on purpose: what a killed one leaves is in the system's temporary directory.
    """

    def __init__(self, parent: str) -> None:
        with store_errors(Path(parent)):
            self.path = Path(tempfile.mkdtemp(prefix="noisescope-", dir=parent))
        self._count = 0
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def write(self, data: bytes) -> str:
        """A new file with that content; where it is."""
        path = self.path / str(self._count)
        self._count += 1
        with store_errors(path):
            path.write_bytes(data)
        return str(path)
