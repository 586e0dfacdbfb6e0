"""Packages that only some data needs, imported when it is asked for."""

from importlib import import_module
from typing import Any

from ..errors import MissingExtra

__all__ = ["extra"]


def extra(module: str, *, install: str, purpose: str) -> Any:
    """The module, or one line with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = (error.name or module).partition(".")[0]
        if missing != module.partition(".")[0]:  # it is there, but something that it needs is not
            raise MissingExtra(f"{purpose} needs {missing}: pip install {missing}") from error
        raise MissingExtra(f"{purpose} needs {install}: pip install {install}") from error
