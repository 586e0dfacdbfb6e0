"""A smoothed model as a directory that plain transformers opens.

    config.json  generation_config.json  model.safetensors  tokenizer.json  ...  smoothing.json

The directory is filled beside its place and moved there in one step: whoever is killed meanwhile leaves nothing that
looks like a model.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import store
from ..errors import InputError, ModelError, StoreError
from ..models.boundary import quiet
from ..store.encoding import encode
from ..store.files import store_errors

if TYPE_CHECKING:
    from .smoothed import Smoothed

__all__ = ["RECORD", "refuse", "save"]

RECORD = "smoothing.json"
LARGEST = 64 << 20


def save(found: "Smoothed", directory: Path, *, tokenizer: Any, overwrite: bool) -> Path:
    """Writes the model; where it is."""
    write = getattr(found.model, "save_pretrained", None)
    if not callable(write):
        raise ModelError(f"{type(found.model).__name__}: cannot be saved, expected a Hugging Face model")
    refuse(directory, overwrite=overwrite)
    record = encode(found.sections).encode()
    with quiet(), store.atomic_directory(directory, replace=overwrite) as place:
        with _settings_aside(found.model, place):
            write(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        store.atomic_write(place / RECORD, record)
    if store.read_whole(directory / RECORD, LARGEST) != record:
        raise StoreError(f"{directory}: another process has written there meanwhile; use another directory")
    return directory


@contextmanager
def _settings_aside(model: Any, place: Path) -> Iterator[None]:
    """Writes the settings of generation as they are: transformers refuses to save some that it has opened itself."""
    settings = getattr(model, "generation_config", None)
    if settings is None:
        yield
        return
    model.generation_config = type(settings)()
    try:
        yield
    finally:
        model.generation_config = settings
    settings.to_json_file(place / "generation_config.json", keys_to_pop=["compile_config"])


def refuse(directory: Path, *, overwrite: bool) -> None:
    """Raises for a place that must not be written to: one that is there, unless it may be replaced and is ours."""
    with store_errors(directory):
        if not os.path.lexists(directory):
            return
        if not directory.is_dir():
            raise StoreError(f"cannot write {directory}: it is a file, expected a directory; use another name")
        if not any(directory.iterdir()):
            return
        if not overwrite:
            raise InputError(f"{directory}: is there already; use another directory (--output) or --overwrite")
        if not _is_ours(directory):
            raise InputError(
                f"{directory}: is no smoothed model, and is not replaced; use another directory (--output)"
            )


def _is_ours(directory: Path) -> bool:
    try:
        found = json.loads(store.read_whole(directory / RECORD, LARGEST))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("schema") == "noisescope smoothing"
