"""A GGUF file's header, read with every length checked against the file before it is believed.

The reader of the gguf package trusts the counts in the file, so a damaged one can cost it minutes and gigabytes.
This one only skips and counts; what passes here is safe to hand to it. Weights are not read.
"""

__all__ = ["GgufHeader", "read_header"]

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .boundary import one_line

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_MOST_STRINGS = 1 << 22  # the largest vocabularies have some 300 thousand entries


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself: its single values by key, and the shape of every tensor."""

    values: dict[str, object]
    shapes: dict[str, tuple[int, ...]]


def read_header(path: Path) -> GgufHeader:
    """The header of a whole and well-formed GGUF file; anything else is a ModelError of one line."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise ModelError(f"{path}: not a whole GGUF file ({one_line(error)}); fetch it again") from error


def _parse(cursor: "_Cursor") -> GgufHeader:
    if cursor.take("4s") != b"GGUF":
        raise ValueError('does not start with "GGUF"')
    if (version := cursor.take("I")) not in (2, 3):
        raise ValueError(f"version {version}, expected 2 or 3")
    tensor_count, value_count = cursor.take("Q"), cursor.take("Q")
    values = {cursor.string(): cursor.value() for _ in range(value_count)}
    extents = dict(cursor.tensor() for _ in range(tensor_count))
    if len(values) < value_count or len(extents) < tensor_count:
        raise ValueError("a name occurs twice")
    _check_extents(cursor, extents, values.get("general.alignment", 32))
    return GgufHeader(values, {name: shape for name, (shape, _, _) in extents.items()})


def _check_extents(cursor: "_Cursor", extents: dict[str, tuple[tuple[int, ...], int, int]], alignment: object) -> None:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment}, expected a power of two")
    start = math.ceil(cursor.position / alignment) * alignment
    for name, (_, offset, size) in extents.items():
        if start + offset + size > len(cursor.data):
            raise ValueError(f"ends inside tensor {name}")


class _Cursor:
    """A place in the file; it never passes the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, layout: str) -> Any:
        """The next value of a struct layout."""
        layout = "<" + layout
        (value,) = struct.unpack_from(layout, self.data, self._skip(struct.calcsize(layout)))
        return value

    def string(self) -> str:
        """The next length-prefixed string."""
        size = self.take("Q")
        start = self._skip(size)
        return bytes(self.data[start : start + size]).decode()

    def value(self) -> object:
        """The next typed value; an array is skipped and gives its length."""
        kind = self.take("I")
        if kind == _STRING:
            return self.string()
        return self._array() if kind == _ARRAY else self.take(_scalar(kind))

    def tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        """The next tensor's name, with its shape, offset and size in bytes."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, dimensions = self.string(), self.take("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.take("Q") for _ in range(dimensions))
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(self.take("I"))]
        return name, (shape, self.take("Q"), math.prod(shape) // block * block_bytes)

    def _array(self) -> int:
        kind = self.take("I")
        if kind != _STRING:
            width = struct.calcsize("<" + _scalar(kind))
            length: int = self.take("Q")
            self._skip(length * width)
            return length
        length = self.take("Q")
        if length > _MOST_STRINGS:
            raise ValueError(f"a list of {length} strings")
        for _ in range(length):
            self._skip(self.take("Q"))
        return length

    def _skip(self, size: int) -> int:
        start = self.position
        if start + size > len(self.data):
            raise ValueError("ends inside its header")
        self.position += size
        return start


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"unknown value type {kind}")
    return _SCALARS[kind]
