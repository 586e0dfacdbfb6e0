"""What the processes of a run left in the directory of `NOISESCOPE_COUNTS`, read back and checked."""

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..models.boundary import one_line
from ..report.documents import read_document
from ..report.shapes import NUMBER, TEXT, WHOLE, Record, Table
from .witness import SCHEMA, VERSION

__all__ = ["read_proofs"]

_COUNTED = Record(forward=WHOLE, backward=WHOLE)
_SHAPE = (
    Record(pid=WHOLE, host=TEXT, settings=Record())
    | _COUNTED
    | Record(layers=Table(_COUNTED), operators=Table(_COUNTED), doses=Table(NUMBER))
)


def read_proofs(directory: Path) -> list[dict[str, Any]]:
    """One entry per process, by host and pid; an error names the file that is none of ours."""
    try:
        files = sorted(file for file in directory.iterdir() if file.suffix == ".json")
    except OSError as error:
        raise InputError(
            f"{one_line(directory)}: cannot be read ({error.strerror}); a process with NOISESCOPE_COUNTS makes it when "
            "its noise is switched on"
        ) from None
    return sorted(map(_read, files), key=lambda process: (process["host"], process["pid"]))


def _read(file: Path) -> dict[str, Any]:
    found = read_document(file, schema=SCHEMA, version=VERSION, shape=_SHAPE)
    return {name: found[name] for name in _SHAPE.parts}
