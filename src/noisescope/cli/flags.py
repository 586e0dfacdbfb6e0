"""Flags whose errors say which flag it was."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import InputError, NothingMatched

__all__ = ["flag", "flags_named"]

_Given = TypeVar("_Given")
_Parsed = TypeVar("_Parsed")


def flag(name: str, parse: Callable[[_Given], _Parsed], given: _Given) -> _Parsed:
    """The parsed value of a flag; an error starts with the flag's name."""
    try:
        return parse(given)
    except InputError as error:
        message = str(error).removeprefix(f"{name.removeprefix('--')}: ")
        raise InputError(f"{name}: {message}") from None


@contextmanager
def flags_named(fields: Collection[str]) -> Iterator[None]:
    """An error about one of these fields, as Python callers know them, names the flag instead."""
    try:
        yield
    except (InputError, NothingMatched) as error:
        field, colon, rest = str(error).partition(":")
        if colon and field in fields:
            raise type(error)(f"--{field.replace('_', '-')}:{rest}") from None
        raise
