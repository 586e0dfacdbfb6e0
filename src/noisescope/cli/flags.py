"""Flags whose errors say which flag it was."""

from collections.abc import Callable
from typing import TypeVar

from ..errors import InputError

__all__ = ["flag"]

_Given = TypeVar("_Given")
_Parsed = TypeVar("_Parsed")


def flag(name: str, parse: Callable[[_Given], _Parsed], given: _Given) -> _Parsed:
    """The parsed value of a flag; an error starts with the flag's name."""
    try:
        return parse(given)
    except InputError as error:
        message = str(error).removeprefix(f"{name.removeprefix('--')}: ")
        raise InputError(f"{name}: {message}") from None
