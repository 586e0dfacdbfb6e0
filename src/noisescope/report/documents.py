"""JSON documents of ours that are read back: of a schema by its name, a version and a shape; others are refused."""

from pathlib import Path
from typing import Any

from .. import store
from ..errors import InputError
from ..models.boundary import one_line
from ..store.encoding import decode
from .rows import Sections
from .shapes import Shape

__all__ = ["read_document"]

LARGEST = 256 << 20
"""bytes; a comparison of a model of 30 layers has two million"""


def read_document(file: Path, *, schema: str, version: int, shape: Shape) -> Sections:
    """What a file holds, once it is known to be such a document; an error names the file and the place."""
    name, what = one_line(file), schema.removeprefix("noisescope ")
    try:
        found = decode(store.read_whole(file, LARGEST).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{name}: not a {what} ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict) or found.get("schema") != schema:
        raise InputError(f'{name}: schema: got {_got(found, "schema")}, expected "{schema}"')
    if type(found.get("version")) is not int or found["version"] != version:
        raise InputError(f"{name}: version: got {_got(found, 'version')}, expected {version}")
    shape.check(found, name)
    return found


def _got(found: Any, key: str) -> str:
    return one_line(repr(found.get(key)))[:40] if isinstance(found, dict) else f"a {type(found).__name__}"
