"""A comparison read back from its file, and what that must hold before it is believed."""

from pathlib import Path

from ..documents import read_document
from ..rows import Sections
from ..shapes import LAYER, NUMBER, TEXT, TRUTH, WHOLE, Either, Listed, Record, Table
from .files import FILES

__all__ = ["load_comparison"]

SCHEMA, VERSION = "noisescope comparison", 1

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
_SHAPE = Record(
    verdict=Record(outcome=TEXT, fed=TRUTH),
    traces=Record(reference=_trace, suspect=_trace),
    differences=Listed(Record(field=TEXT)),
    layers=Listed(_layer),
    sites=Listed(_site),
    fed=Listed(_site),
)


def load_comparison(path: str | Path) -> Sections:
    """The sections of a comparison that `compare` saved, from its directory or its JSON file."""
    file = Path(path)
    file = file / FILES["json"] if file.is_dir() else file
    return read_document(file, schema=SCHEMA, version=VERSION, shape=_SHAPE)
