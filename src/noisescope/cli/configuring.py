"""`--config FILE.yaml`: every flag of a command is also a key of its file; a flag on the command line wins.

    model: path/to/model
    level: full
    layer:
      window_size: 4
      noise_scale: 0.02

The keys are the command's own parameters, so that a new flag is a key at once; those that the levels share a word for
may stand under the level (`SECTIONS`). Values are held to the checks of the flags, and everything that is wrong with a
file is said at once, with its line. The file must be right also where a flag overrides it.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import typer

from ..errors import InputError, quoted
from ..specs import Check, checked
from ..specs.checks import text, truth
from .flags import CHECKS, ORIGINS

if TYPE_CHECKING:
    from ..specs.document import Document, Entry, Value

__all__ = ["configure"]

SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "operator.noise_scale": "noise_scale",
        "operator.operators": "operators",
        "layer.window_size": "window_size",
        "layer.step_size": "step_size",
        "layer.noise_scale": "layer_noise_scale",
        "channel.calibration_samples": "calibration_samples",
        "channel.outlier_threshold": "outlier_threshold",
        "channel.save_activations": "save_activations",
    }
)
"""key under a level -> the parameter it means"""
ONLY_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "config": "a configuration cannot name another",
        "trust_remote_code": "a file cannot allow code to run; pass --trust-remote-code",
    }
)
"""flags that are no keys, and why"""
MOST_SHOWN = 20
"""problems of one file"""

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def configure(context: typer.Context, file: Path | None) -> Path | None:
    """Callback of `--config`: the file's values become the defaults of the command's other parameters."""
    if file is None or context.resilient_parsing:
        return file
    from ..specs.document import read_document

    document = read_document(file)
    reading = _Reading(document, _parameters(context))
    values = reading.values()
    if document.problems:
        raise InputError(*_first(document))
    context.default_map = {**(context.default_map or {}), **values}
    context.meta[ORIGINS] = {name: document.at(entry.line, entry.key) for name, entry in reading.taken.items()}
    return file


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a command: what it holds, and whether it may hold nothing."""

    name: str
    kind: type
    may_be_nothing: bool


def _parameters(context: typer.Context) -> dict[str, _Parameter]:
    """The parameters of the command, by name."""
    function = inspect.unwrap(context.command.callback)  # type: ignore[arg-type]  # a command has one
    found = {}
    for name, hint in get_type_hints(function).items():
        kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
        if name not in ("return", *ONLY_FLAGS) and kinds[0] is not typer.Context:
            found[name] = _Parameter(name, kinds[0], len(kinds) < len(get_args(hint)))
    return found


class _Reading:
    """The entries of a document on their way to parameters; what is wrong is noted in the document."""

    def __init__(self, document: "Document", parameters: Mapping[str, _Parameter]) -> None:
        self.document, self.parameters = document, parameters
        self.meaning = {name: name for name in parameters} | {
            key: name for key, name in SECTIONS.items() if name in parameters
        }
        self.taken: dict[str, Entry] = {}

    def values(self) -> dict[str, Any]:
        """Parameter -> value, for the entries that are right."""
        found = {}
        for entry in self.document.entries:
            name = self.meaning.get(entry.key)
            if name is None:
                self._refuse(entry, self._unknown(entry.key))
            elif (before := self.taken.setdefault(name, entry)) is not entry:
                if before.key != entry.key:  # the same key twice is the document's own problem
                    self._refuse(entry, f"means the same as {before.key} in line {before.line}; keep one of them")
            else:
                try:
                    found[name] = _value(self.parameters[name], entry.value)
                except InputError as error:
                    for problem in error.problems:
                        self._refuse(entry, problem.removeprefix(f"{name}: "))
        return found

    def _refuse(self, entry: "Entry", problem: str) -> None:
        self.document.refuse(entry.line, problem, key=entry.key)

    def _unknown(self, key: str) -> str:
        if key in ONLY_FLAGS:
            return ONLY_FLAGS[key]
        head, dot, _ = key.partition(".")
        if dot and head in self.parameters:
            return f"{head} has no keys under it, expected one value"
        under = [name for name in self.meaning if name.startswith(f"{head}.")]
        if not dot and under:
            return f"expected keys under it ({' '.join(name.partition('.')[2] for name in under)})"
        near = get_close_matches(key, self.meaning, n=1)
        return "unknown key" + (f', did you mean "{near[0]}"?' if near else f" ({' '.join(under or self.parameters)})")


def _value(parameter: _Parameter, given: "Value") -> Any:
    """What the parameter gets; an error says what it expected."""
    if given is None and parameter.may_be_nothing:
        return None
    lists = parameter.name in ("layers", "operators")
    if isinstance(given, tuple) and not lists:
        raise InputError(f"got a list of {len(given)}, expected a single value")
    value = ",".join(given) if isinstance(given, tuple) else _typed(parameter.kind, given or "")
    if isinstance(value, str) and not value.isprintable():  # a NUL, half a character: no file is called that
        raise InputError(f"got {quoted(value)}, expected text on one line")
    checked({parameter.name: value}, {parameter.name: _check(parameter)})
    return value


def _typed(kind: type, given: str) -> Any:
    """The number or truth that the text stands for; the text itself where it stands for none."""
    if kind is bool and given.lower() in (*_TRUE, *_FALSE):
        return given.lower() in _TRUE
    if kind is int and _WHOLE.fullmatch(given):
        return int(given)
    if kind is float and _NUMBER.fullmatch(given):
        return float(given)
    return given


def _check(parameter: _Parameter) -> Check:
    """The check of the flag of that name, or of any of its kind."""
    return CHECKS.get(parameter.name, truth if parameter.kind is bool else text)


def _first(document: "Document") -> Iterator[str]:
    """The problems in the order of their lines, as many as a person wants to read."""
    found = sorted(document.problems, key=lambda problem: problem[0])
    yield from (problem for _, problem in found[:MOST_SHOWN])
    if len(found) > MOST_SHOWN:
        yield f"{document.label}: and {len(found) - MOST_SHOWN} more"
