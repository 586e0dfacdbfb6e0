"""Data files to text or rows: .txt and .md, .jsonl and .json, .parquet; every complaint names file and line.

Nothing that is read can run: no pickle, no loading script. Lines are read one by one, so that a large .jsonl file
needs the memory of its longest line.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..models.boundary import one_line
from .extras import extra

__all__ = ["SUFFIXES", "Prose", "Row", "Rows", "read_file"]

SUFFIXES = (".txt", ".md", ".jsonl", ".json", ".parquet")

_LARGEST = 32 << 20  # bytes of a file that is held whole; JSON takes up to thirty times as much in memory
_LONGEST_LINE = 16 << 20


@dataclass(frozen=True)
class Prose:
    """A text to cut into windows. `name` is fit for a report, `label` is what the person wrote."""

    name: str
    label: str
    text: str


@dataclass(frozen=True)
class Row:
    """One object of the data, and where it stands: file and line, or the number of a row or item."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """Objects to make samples of. `endless` ones are taken from the front; of others some are chosen."""

    name: str
    label: str
    rows: Iterator[Row]
    endless: bool = False
    naming: str = 'rename one of them to "text"'
    """how to say which field is meant; {field} stands for its name"""


def read_file(path: Path, label: str) -> Prose | Rows:
    """What the file holds; rows are read when they are asked for."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise InputError(f"{label}: no such file")
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "neither a file nor a directory"
        raise InputError(f"{label}: is {kind}, expected a data file")
    if suffix not in SUFFIXES:
        got = f'cannot read "{one_line(suffix)}" files' if suffix else "a file without a suffix"
        raise InputError(f"{label}: {got}, expected one of {' '.join(SUFFIXES)}")
    if suffix in (".txt", ".md"):
        return Prose(path.name, label, _text(_whole(path, label), label))
    readers = {".jsonl": _json_lines, ".json": _json_file, ".parquet": _parquet}
    return Rows(
        path.name, label, _counted(readers[suffix](path, label), label), naming=f"name it with --data {label}:{{field}}"
    )


def _counted(rows: Iterator[Row], label: str) -> Iterator[Row]:
    """The rows, of which there must be at least one."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - counted for what follows the loop
        yield row
    if not count:
        raise InputError(f"{label}: empty, expected at least one row")


def _whole(path: Path, label: str) -> bytes:
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            hint = "convert it to .jsonl, which is read line by line" if path.suffix == ".json" else "pass a part of it"
            raise InputError(f"{label}: {size >> 20} MB, expected at most {_LARGEST >> 20}; {hint}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror}") from error


def _text(data: bytes, label: str) -> str:
    """The characters of a text file; binary data is refused with the line where it shows."""
    text = _decoded(data, label)
    if "\0" in text:
        raise InputError(f"{label}:{text[: text.index(chr(0))].count(chr(10)) + 1}: binary data, expected text")
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise InputError(f"{label}: empty, expected text")
    return text


def _decoded(data: bytes, label: str, line: int = 1) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise InputError(f"{label}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x})") from error


def _json_lines(path: Path, label: str) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(data) > _LONGEST_LINE:
                    raise InputError(f"{label}:{number}: a line of more than {_LONGEST_LINE >> 20} MB")
                if data.strip():
                    yield _row(_parsed(_decoded(data, label, number), label, number), f"{label}:{number}")
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror}") from error


def _json_file(path: Path, label: str) -> Iterator[Row]:
    """A list of objects, a single one, or in truth JSON lines."""
    text = _decoded(_whole(path, label), label)
    if not text.strip():
        return
    try:
        content = _parsed(text, label)
    except InputError as error:
        if isinstance(error.__cause__, json.JSONDecodeError) and error.__cause__.msg == "Extra data":
            yield from _json_lines(path, label)
            return
        raise
    for number, value in enumerate(content if isinstance(content, list) else [content], 1):
        yield _row(value, f"{label}:{number}")


def _parsed(text: str, label: str, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"{label}:{line + error.lineno - 1}:{error.colno}"
        raise InputError(f"{at}: not valid JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number of a million digits, or brackets without end
        raise InputError(f"{label}:{line}: not valid JSON ({one_line(error)[:80]})") from error


def _row(value: object, where: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {type(value).__name__}, expected an object with named fields")
    return Row(where, value)


def _parquet(path: Path, label: str) -> Iterator[Row]:
    purpose = f"{label}: reading Parquet"
    parquet = extra("pyarrow.parquet", install="pyarrow", purpose=purpose)
    arrow_error = extra("pyarrow", install="pyarrow", purpose=purpose).ArrowException
    try:
        with parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(batch_size=64) for row in batch.to_pylist())
            for number, values in enumerate(rows, 1):
                yield Row(f"{label}:{number}", values)
    except (arrow_error, OSError, ValueError) as error:
        raise InputError(f"{label}: not a readable Parquet file ({one_line(error)[:100]})") from error
