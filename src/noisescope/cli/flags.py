"""Flags: one table of checks for the command line and for configurations, and errors that say which flag it was.

--window-size: got 0, expected a whole number of at least 1
sweep.yaml:3 layer.window_size: got 0, expected a whole number of at least 1
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError, NothingMatched
from ..models import DTYPES
from ..operators import expand
from ..report.formats import formats_with_default
from ..specs import FIELDS, OPTIONS, PRESETS, UNUSED, Check, checked
from ..specs.checks import one_of, optional, text

if TYPE_CHECKING:
    import typer

__all__ = ["CHECKS", "ORIGINS", "checked_flags", "flag", "flags_named", "is_typed", "read_flags"]

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        **dict.fromkeys(("model", "data", "calibration_data", "attn", "tokenizer", "blocks"), optional(text)),
        **FIELDS,
        **OPTIONS,
        "operators": expand,
        "trials": optional(FIELDS["trials"]),
        "n_samples": optional(OPTIONS["n_samples"]),
        "preset": one_of("preset", tuple(PRESETS)),
        "dtype": one_of("dtype", DTYPES),
        "device": text,
        "output": text,
        "format": formats_with_default,
    }
)
"""parameter of a command -> its check"""
ORIGINS = "noisescope.origins"
"""in the context of a command: parameter -> file, line and key that set it"""

_Given = TypeVar("_Given")
_Parsed = TypeVar("_Parsed")


def checked_flags(context: "typer.Context", more: Mapping[str, Check] = MappingProxyType({})) -> dict[str, Any]:
    """The parameters of a command, checked and in canonical form; an error tells of all that are wrong."""
    checks = {**CHECKS, **more}
    with flags_named(checks, context):
        return {**context.params, **checked(context.params, checks)}


def read_flags(context: "typer.Context") -> dict[str, Any]:
    """The parameters of a diagnosis, checked; what its level does not look at must not have been typed."""
    found = checked_flags(context)
    level = found["level"]
    unused = [name for name in UNUSED[level] if is_typed(name, context)]
    if unused:
        raise InputError(*(f"{_flag(name)}: is not looked at with --level {level}; leave it out" for name in unused))
    return found


def is_typed(name: str, context: "typer.Context") -> bool:
    """True if a parameter stands on the command line, and not only in a configuration."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
        return _flag(field)
    return str(context.meta[ORIGINS][field])


def _flag(field: str) -> str:
    return "MODEL" if field == "model" else f"--{field.replace('_', '-')}"
