"""What a file is called from another directory. Names that are no files, such as those of a hub, stay as they are."""

import os
from pathlib import Path

__all__ = ["as_called_from"]


def as_called_from(here: str | Path, name: str, *, there: str | Path = ".") -> str:
    """A path, or a path with a field (`rows.jsonl:question`), that is meant from `there`, as it is called from here.

    Absolute paths stay so.
    """
    head, colon, field = name.rpartition(":")
    for path, rest in ((name, ""), (head, colon + field)):
        place = os.path.join(there, os.path.expanduser(path))
        if path and os.path.exists(place):
            # `..` leads to the real parent of a directory, whichever link led into it
            return name if os.path.isabs(path) else os.path.relpath(place, os.path.realpath(here)) + rest
    return name
