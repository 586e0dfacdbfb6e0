"""From what a person calls a model to a place on this disk.

    ./dir, dir            a directory
    file.gguf             a GGUF file
    org/name              a model of the Hugging Face hub, downloaded or from its cache

Says what a name means and nothing about whether the files are any good: that is `checkpoint`.
"""

__all__ = ["Kind", "Source", "resolve"]

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import InputError, ModelError
from .boundary import one_line, quiet
from .checkpoint import PICKLES, WEIGHTS, pickle_refused

Kind = Literal["default", "directory", "gguf", "hub"]

TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
MODEL_FILES = (*TOKENIZER_FILES, "model.safetensors", "model-*-of-*.safetensors")


@dataclass(frozen=True)
class Source:
    """Where a model's files are: label is what the person wrote, name is fit for a report (never a full path)."""

    kind: Kind
    label: str
    name: str
    path: Path


def resolve(name: str | Path, *, files: tuple[str, ...] = MODEL_FILES) -> Source:
    """The directory or GGUF file that name stands for; a hub id is downloaded (only what matches files)."""
    label, path = one_line(name), os.path.expanduser(name)
    if not str(name):
        raise InputError("model name is empty; name a directory, a GGUF file or a hub id, or omit it for the default")
    if os.path.isdir(path):
        return Source("directory", label, os.path.basename(os.path.realpath(path)), Path(path))
    if os.path.exists(path):
        return _file(label, Path(path))
    if isinstance(name, Path) or _looks_like_path(name):
        raise ModelError(f"{label}: no such file or directory")
    return Source("hub", label, label, _download(name, files))


def _file(label: str, path: Path) -> Source:
    if path.suffix == ".gguf" and path.is_file():
        return Source("gguf", label, path.stem, path)
    if path.suffix in PICKLES:
        raise pickle_refused(label, path.name)
    if path.suffix == ".safetensors":
        raise ModelError(f"{label}: is one file of a model; pass the directory that holds it and config.json")
    raise ModelError(f"{label}: is neither a directory nor a .gguf file")


def _looks_like_path(name: str) -> bool:
    return bool(re.match(r"[./~\\]|[A-Za-z]:\\", name)) or name.endswith(("/", *WEIGHTS)) or name.count("/") > 1


def _download(repository: str, files: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    with quiet(progress=sys.stderr.isatty()):
        try:
            return Path(snapshot_download(repository, allow_patterns=[*files], ignore_patterns=["*/*"]))
        except HFValidationError:
            reason = "is neither a directory here nor a hub id (org/name)"
        except GatedRepoError:
            reason = "is gated on the hub; accept its terms there and log in with `hf auth login`"
        except RepositoryNotFoundError:
            reason = "is neither a directory here nor a model on the hub (a private one needs `hf auth login`)"
        except Exception as error:  # noqa: BLE001 - the HTTP stack below the hub raises its own trees; all mean "no download"
            cause = str(error).partition("\n")[0][:80]
            reason = (
                f"no such directory, and the hub cannot be reached ({cause}); download it elsewhere with "
                f"`hf download {repository} --local-dir DIR` and pass DIR, or omit the model for the default"
            )
    raise ModelError(f"{one_line(repository)}: {reason}")
