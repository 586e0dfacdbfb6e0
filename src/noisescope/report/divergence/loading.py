"""A comparison read back from its file, and what that must hold before it is believed."""

from pathlib import Path
from typing import Any

from ... import store
from ...errors import InputError
from ...models.boundary import one_line
from ...store.encoding import decode
from ..rows import Sections
from ..shapes import LAYER, NUMBER, TEXT, TRUTH, WHOLE, Either, Listed, Record, Shape, Table
from .files import FILES

__all__ = ["load_comparison"]

SCHEMA, VERSION = "noisescope comparison", 1
LARGEST = 256 << 20
"""bytes of a comparison.json; that of a model of 30 layers has two million"""

_maybe_number, _maybe_text = Either(NUMBER, nothing=True), Either(TEXT, nothing=True)
_figure = Record(value=_maybe_number, low=_maybe_number, high=_maybe_number)
_trace = Record(
    {"weights": _maybe_text},
    file=_maybe_text,
    model=TEXT,
    layers=WHOLE,
    data=TEXT,
    tokens=WHOLE,
    checkpoint=_maybe_text,
    environment=Record(dtype=TEXT, device=TEXT),
)
_layer = Record(
    layer=LAYER,
    role=TEXT,
    word=TEXT,
    added=_maybe_number,
    inherited=_maybe_number,
    error=_maybe_number,
    gain=_maybe_number,
    mape=_maybe_number,
    beyond=TRUTH,
)
_site = Record(
    name=TEXT,
    layer=Either(LAYER, nothing=True),
    operator=TEXT,
    module=TEXT,
    stage=TEXT,
    phase=TEXT,
    same_bits=TRUTH,
    non_finite=Listed(WHOLE, length=2),
    metrics=Table(Either(_figure, nothing=True)),
)
_SECTIONS: dict[str, Shape] = {
    "verdict": Record(outcome=TEXT, fed=TRUTH),
    "traces": Record(reference=_trace, suspect=_trace),
    "differences": Listed(Record(field=TEXT)),
    "layers": Listed(_layer),
    "sites": Listed(_site),
    "fed": Listed(_site),
}


def load_comparison(path: str | Path) -> Sections:
    """The sections of a comparison that `compare` saved, from its directory or its JSON file."""
    file = Path(path)
    file = file / FILES["json"] if file.is_dir() else file
    try:
        found = decode(store.read_whole(file, LARGEST).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{one_line(file)}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{one_line(file)}: not a comparison ({' '.join(str(error).split())})") from None
    return _checked(found, one_line(file))


def _checked(found: Any, file: str) -> Sections:
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        got = one_line(repr(found.get("schema") if isinstance(found, dict) else type(found).__name__))[:60]
        raise InputError(f"{file}: schema: got {got}, expected {SCHEMA!r}, as `noisescope compare` of two traces saves")
    if type(found.get("version")) is not int or found["version"] != VERSION:
        raise InputError(f"{file}: version: got {one_line(repr(found.get('version')))[:40]}, expected {VERSION}")
    for name, part in _SECTIONS.items():
        if name not in found:
            raise InputError(f"{file}: {name}: missing; the file is incomplete")
        part.check(found[name], f"{file}: {name}")
    return found
