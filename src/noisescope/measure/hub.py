"""Datasets of the Hugging Face hub by name: `org/name`, or `org/name/configuration` where there are several.

The split is test, else validation, else train. Loading scripts are never run: `datasets` dropped them in version 4,
and older versions are refused.
"""

import re
import sys
from typing import Any

from ..errors import InputError, MissingExtra
from ..models.boundary import one_line, quiet
from .extras import extra
from .reading import Row, Rows

__all__ = ["is_dataset_name", "read_dataset"]

_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+){0,2}", re.ASCII)
_SPLITS = ("test", "validation", "train")
_SECONDS = 10.0


def is_dataset_name(text: str) -> bool:
    """True if it could be one; whether it exists is known to the hub alone."""
    return bool(_NAME.fullmatch(text)) and not text.startswith((".", "/"))


def read_dataset(label: str) -> Rows:
    """The rows of the dataset, downloaded or from the cache of `datasets`."""
    datasets = extra("datasets", install="datasets", purpose=f"{label}: no such file; a dataset of the hub")
    if int(datasets.__version__.partition(".")[0]) < 4:
        raise MissingExtra(
            f"{label}: datasets {datasets.__version__} can run code of a dataset; pip install --upgrade datasets"
        )
    name, configuration = _parts(label)
    with quiet(progress=sys.stderr.isatty()):
        if not datasets.config.HF_HUB_OFFLINE:
            _reach(label, name)
        split = _split(datasets, label, name, configuration)
    numbered = (Row(f"{label}:{number}", row) for number, row in enumerate(split, 1))
    return Rows(label, label, numbered, naming=f"name it with --data {label}:{{field}}")


def _parts(label: str) -> tuple[str, str | None]:
    parts = label.split("/")
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None


def _reach(label: str, name: str) -> None:
    """One question to the hub: `datasets` itself would repeat it for half a minute before it gives up."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=_SECONDS)
    except GatedRepoError as error:
        raise InputError(f"{label}: gated on the hub; accept its terms and log in with `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"{label}: neither a file here nor a dataset on the hub") from error
    except Exception as error:  # the HTTP stack below the hub raises its own trees; all mean "no answer"
        raise InputError(
            f"{label}: no such file, and the hub cannot be reached ({one_line(error)[:80]}); pass a file, or set "
            "HF_HUB_OFFLINE=1 if it was downloaded before"
        ) from error


def _split(datasets: Any, label: str, name: str, configuration: str | None) -> Any:
    try:
        found = datasets.load_dataset(name, configuration)
    except Exception as error:  # parsers of a dozen formats raise anything; all of it means "not this dataset"
        raise InputError(f"{label}: cannot be loaded ({_reason(error)})") from error
    for split in _SPLITS:
        if split in found:
            return found[split]
    raise InputError(f"{label}: no split {', '.join(_SPLITS)} (has: {one_line(', '.join(found))})")


def _reason(error: Exception) -> str:
    names = re.search(r"available configs: \[(.*?)\]", str(error), re.DOTALL)
    if names:
        return f"several configurations, name one as org/name/configuration: {one_line(names[1])}"
    return one_line(error)
