"""A format map on disk, so that another plan of the same model needs no pass of gradients.

It holds what it was made of: another model, other text or another seed, and it is made anew.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import store
from ..errors import InputError
from ..models.boundary import one_line
from ..store.encoding import decode, encode
from ..store.packing import pack, unpack
from .format_map import FormatMap

__all__ = ["load_map", "save_map"]

SCHEMA, VERSION = "noisescope format map", 2
LARGEST = 1 << 30
_ELSEWHERE = "; move it away, or use another directory (--output)"


def save_map(found: FormatMap, path: str | Path, question: Mapping[str, Any]) -> None:
    """Writes the map and what it was made of; a file that is there is replaced."""
    store.make_directory(Path(path).parent)
    sections = {"schema": SCHEMA, "version": VERSION, "question": dict(question), "map": pack(found)}
    store.atomic_write(Path(path), encode(sections).encode())


def load_map(path: str | Path, question: Mapping[str, Any], formats: tuple[str, ...]) -> FormatMap | None:
    """The map of that question with these formats, if it is there; None if there is none, or one of something else."""
    file = Path(path)
    try:
        sections = decode(store.read_whole(file, LARGEST).decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{one_line(file)}: cannot be read ({error.strerror}){_ELSEWHERE}") from None
    except ValueError as error:
        raise InputError(f"{one_line(file)}: not a format map ({one_line(error)}){_ELSEWHERE}") from None
    if not isinstance(sections, dict) or sections.get("schema") != SCHEMA:
        raise InputError(f"{one_line(file)}: not a format map{_ELSEWHERE}")
    if sections.get("version") != VERSION or sections.get("question") != dict(question):
        return None
    try:
        found = unpack(FormatMap, sections["map"])
        return _only(found, formats)
    except (ValueError, LookupError) as error:
        raise InputError(f"{one_line(file)}: is damaged ({one_line(error)}); remove it") from None


def _only(found: FormatMap, formats: tuple[str, ...]) -> FormatMap | None:
    """The map with just these formats; None if it lacks one."""
    shape = (len(found.places), len(found.tokens), len(found.formats))
    if found.projections.shape != shape or found.sequences.shape != found.tokens.shape:
        raise ValueError(f"got numbers of shape {found.projections.shape}, expected {shape}")
    if not np.isfinite(found.tokens).all() or not (found.tokens > 0).any():
        raise ValueError("has no tokens that were predicted")
    if not set(formats) <= set(found.formats):
        return None
    columns = [found.formats.index(name) for name in formats]
    diagonal = None if found.diagonal is None else found.diagonal[:, :, columns]
    return replace(found, formats=formats, projections=found.projections[:, :, columns], diagonal=diagonal)
