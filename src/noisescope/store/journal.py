"""The journal of a run: what is finished, line by line, so that a run that was killed can go on.

    5c1e0a4b9d21f3e7 {"journal":1,"question":{"model":"9f...","noise_scale":0.05}}
    a2f7c40d11b98e60 {"key":"{\\"selection\\":...","value":{...}}

Each line is a checksum and one record. A record is appended whole and reaches the disk before the next step begins. A
line that is torn or damaged is left out when the journal is read, so that what it held is computed anew; only the first
line, which says what was asked, is indispensable. Order means nothing: a record is found by its key.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ..errors import InputError, StoreError
from .encoding import decode, encode_line
from .files import atomic_write, lock, make_directory, read_whole, remove, store_errors, sweep, write_all
from .packing import pack, unpack

__all__ = ["Journal"]

VERSION = 1
LARGEST = 512 << 20
"""bytes: far more than any run has kept"""
_T = TypeVar("_T")
_DIGITS = 16


class Journal:
    """Records of a run that are kept in a file.

    Nothing is read, locked or written until `begin`, which says what is asked. Close it, or use it in a `with` block.

    >>> with Journal("run.journal") as journal:                          # doctest: +SKIP
    ...     report = noisescope.diagnose(model, texts, journal=journal)
    """

    def __init__(self, path: str | Path, *, anew: bool = False, once_held: Callable[[], None] = lambda: None) -> None:
        """With `anew`, what is there is replaced. `once_held` is called when no other process can be at the file any
        more, before it is read or written; what it raises ends `begin`.
        """
        self.path = Path(path)
        self.damaged = 0
        """lines that could not be read, and are computed anew"""
        self.kept = 0
        """records that were there when the run began"""
        self._lock_file = self.path.with_name(f".{self.path.name}.lock")
        self._anew, self._once_held = anew, once_held
        self._records: dict[str, Any] = {}
        self._lock: AbstractContextManager[None] | None = None
        self._file: int | None = None
        self._is_new = False
        self._made: list[Path] = []

    def begin(self, question: Mapping[str, Any]) -> None:
        """Makes the file, or goes on with the one that is there if it answers the same question.

        Raises InputError naming what differs, and StoreError if another process is at it.
        """
        self._made = [place for place in (self.path.parent, *self.path.parent.parents) if not place.exists()]
        make_directory(self.path.parent)
        self._lock = lock(self._lock_file, wait=False)
        self._lock.__enter__()
        self._once_held()
        sweep(self.path)
        if self.path.exists() and not self._anew:
            self._read(question)
        else:
            self._is_new = True
            atomic_write(self.path, _line({"journal": VERSION, "question": question}))
        with store_errors(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND)
            if not _ends_with_newline(self._file):
                write_all(self._file, b"\n")
        self.kept = len(self._records)

    def refuse_other(self, question: Mapping[str, Any]) -> None:
        """Raises as `begin` would for a file that is damaged or answers another question; locks and makes none."""
        if os.path.lexists(self.path):
            self._read(question)
            self._records, self.damaged = {}, 0

    def refuse_if_in_use(self) -> None:
        """Raises StoreError if another process is at it now; makes no file."""
        if self._lock_file.exists():
            with lock(self._lock_file, wait=False):
                pass

    def keep(self, key: str, value: Any) -> None:
        """Keeps a value (see `packing`) under a key; when this returns it is on the disk."""
        if self._file is None:
            raise StoreError(f"{self.path}: the journal is not open")
        plain = pack(value)
        with store_errors(self.path):
            write_all(self._file, _line({"key": key, "value": plain}))
        self._records[key] = plain

    def recall(self, kind: type[_T], key: str) -> _T | None:
        """What is kept under a key; None if there is nothing of that kind."""
        try:
            return unpack(kind, self._records[key]) if key in self._records else None
        except ValueError:
            return None

    @property
    def keys(self) -> tuple[str, ...]:
        """Of everything that is kept, in the order in which it was."""
        return tuple(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def close(self) -> None:
        """Lets others at the file; a run that has finished nothing leaves none."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        held, self._lock = self._lock, None
        if held is not None:
            with suppress(StoreError):  # why the run ended is what matters, and an empty journal does no harm
                if self._is_new and not self._records:
                    remove(self.path)
                if not os.path.lexists(self.path):  # then the lock guards nothing
                    remove(self._lock_file)
            held.__exit__(None, None, None)
            self._remove_directories()

    def _remove_directories(self) -> None:
        """Those that were made for the journal and hold nothing else."""
        with suppress(OSError):
            for place in self._made:
                place.rmdir()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, question: Mapping[str, Any]) -> None:
        with store_errors(self.path, "read"):
            lines = read_whole(self.path, LARGEST).split(b"\n")
        head = _record(lines[0])
        if head is None or head.get("journal") != VERSION or not isinstance(head.get("question"), dict):
            raise StoreError(f"{self.path}:1: the first line is damaged, so nothing is known of this run; {_ANEW}")
        _same(self.path, head["question"], decode(encode_line(question)))
        for found in _records(lines[1:]):
            if found is None:
                self.damaged += 1
            else:
                self._records[found["key"]] = found["value"]


def _same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises for the first thing that is asked differently now."""
    for name in dict.fromkeys([*now, *before]):
        old, new = before.get(name), now.get(name)
        if repr(old) != repr(new):  # NaN is no different from itself here, and 1 is not True
            fix = _FIXES.get(name, "ask the same")
            raise InputError(
                f"{path}: begun with another {name} ({_short(old)}, now {_short(new)}); {fix}, use another directory, "
                f"or {_ANEW}"
            )


_ANEW = "begin anew (--overwrite, in Python anew=True)"
_FIXES = {"threads": "set OMP_NUM_THREADS to what it was"}
"""how to ask the same, where no flag does"""


def _short(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else encode_line(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _line(record: Mapping[str, Any]) -> bytes:
    payload = encode_line(record).encode("ascii")
    return _checksum(payload) + b" " + payload + b"\n"


def _checksum(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_DIGITS // 2).hexdigest().encode("ascii")


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None if it is not as it was written."""
    if line[:_DIGITS] != _checksum(line[_DIGITS + 1 :]) or line[_DIGITS : _DIGITS + 1] != b" ":
        return None
    try:
        found = decode(line[_DIGITS + 1 :].decode("ascii"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _records(lines: list[bytes]) -> Iterator[dict[str, Any] | None]:
    for line in lines:
        if line:
            found = _record(line)
            yield found if found is not None and isinstance(found.get("key"), str) and "value" in found else None


def _ends_with_newline(file: int) -> bool:
    size = os.lseek(file, 0, os.SEEK_END)
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"
