"""Flags whose errors say which flag it was, or which line of a configuration."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..errors import InputError, NothingMatched

if TYPE_CHECKING:
    import typer

__all__ = ["ORIGINS", "flag", "flags_named"]

ORIGINS = "noisescope.origins"
"""in the context of a command: parameter -> file, line and key that set it"""

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
def flags_named(fields: Collection[str], context: "typer.Context | None" = None) -> Iterator[None]:
    """An error about one of these fields, as Python callers know them, names the flag, or the line that set it."""
    try:
        yield
    except (InputError, NothingMatched) as error:
        named = [_named(problem, fields, context) for problem in error.problems]
        if named == [*error.problems]:
            raise
        raise type(error)(*named) from None


def _named(problem: str, fields: Collection[str], context: "typer.Context | None") -> str:
    field, colon, rest = problem.partition(":")
    if not colon or field not in fields:
        return problem
    return f"{_origin(field, context)}:{rest}"


def _origin(field: str, context: "typer.Context | None") -> str:
    """Where a value came from, as a person wrote it."""
    source = context.get_parameter_source(field) if context is not None else None
    if context is None or source is None or source.name != "DEFAULT_MAP":
        return f"--{field.replace('_', '-')}"
    return str(context.meta[ORIGINS][field])
