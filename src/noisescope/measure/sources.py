"""From what a person calls data to what holds it: a file, a field of a file, a hub dataset, a Python object, nothing.

Says what a name means; whether the content is any good is the business of `reading`, `hub` and `objects`.
"""

import os
from pathlib import Path

from ..errors import InputError
from ..models.boundary import one_line
from .hub import is_dataset_name, read_dataset
from .objects import Tokenised, read_object
from .reading import SUFFIXES, Prose, Rows, read_file
from .texts import built_in_text

__all__ = ["find", "names_file", "require_file"]

_OTHER_FILES = (".csv", ".tsv", ".xlsx", ".gz", ".zip", ".zst", ".arrow", ".pkl", ".pickle", ".pt", ".npy", ".npz")


def find(source: object) -> tuple[Prose | Rows | Tokenised, str | None]:
    """What the source holds, and the field that was named."""
    if source is None:
        return Prose("python docs", "python docs", built_in_text()), None
    if not isinstance(source, (str, os.PathLike)):
        return read_object(source), None
    place, field = _parts(os.fsdecode(source))
    label = one_line(place)
    if isinstance(source, os.PathLike) or _is_file(place):
        data: Prose | Rows = read_file(_path(place), label)
    elif is_dataset_name(place):
        data = read_dataset(place)
    else:
        raise InputError(f'data "{label}": neither a file here nor the name of a hub dataset (org/name)')
    if isinstance(data, Prose) and field is not None:
        raise InputError(f'{label}: plain text has no field "{one_line(field)}"')
    return data, field


def require_file(name: str) -> None:
    """Raises if the name means a file that is not there: to be asked before anything that takes time."""
    place, _ = _parts(name)
    if _is_file(place):
        read_file(_path(place), one_line(place))


def names_file(name: str) -> bool:
    """Whether the name means a file, and not a dataset of the hub."""
    return _is_file(_parts(name)[0])


def _parts(text: str) -> tuple[str, str | None]:
    """The path or name, and the field after its colon."""
    if not text:
        raise InputError("data: an empty name; omit it for the built-in text")
    place, colon, field = text.rpartition(":")
    drive = len(place) == 1  # C:\texts.txt
    if not colon or not field or drive or "/" in field or "\\" in field or os.path.lexists(os.path.expanduser(text)):
        return text, None
    return place, field


def _path(place: str) -> Path:
    return Path(os.path.expanduser(place))


def _is_file(place: str) -> bool:
    """Whether a file is meant, and not a dataset of the hub: it is there, or it is called like one."""
    return os.path.lexists(_path(place)) or _looks_like_file(place)


def _looks_like_file(place: str) -> bool:
    return place.lower().endswith((*SUFFIXES, *_OTHER_FILES)) or place.startswith((".", "/", "~", "\\"))
