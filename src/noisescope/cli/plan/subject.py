"""The report that a plan is made from, and what its run was asked: model and data as a person called them.

A report has no paths. `run.json` beside it has what was typed, and where; without it, the name in the report has to do.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ... import store
from ...errors import InputError
from ...models import DEFAULT
from ...planning.places import as_called_from
from ...store.files import store_errors
from ..run_directory import RUN, refuse_place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...report import Report

__all__ = ["Model", "Overwrite", "ReportPath", "Subject", "refuse_files"]

LARGEST = 1 << 24
"""bytes of a run.json that is looked into"""

ReportPath = Annotated[
    str, typer.Argument(help="Directory of a report of `diagnose`, or its JSON file.", metavar="REPORT")
]
Model = Annotated[
    str | None,
    typer.Option(help="The report's model: hub id, directory or GGUF file; none: as it was called when diagnosed."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a plan that is there.")]


@dataclass(frozen=True)
class Subject:
    """A report with what its model and data are called here: empty for the default model, None for built-in text."""

    report: "Report"
    path: str
    model: str
    data: str | None
    tokenizer: str | None = None
    """None where it is with the model"""
    is_named: bool = True
    """whether the model is called as a person called it, and not by the name in the report alone"""

    @classmethod
    def open(cls, path: str, *, model: str | None = None, data: str | None = None) -> "Subject":
        """Reads the report and, if it is there, what `run.json` beside it says of how it was asked."""
        from ...report import Report

        report = Report.load(path)
        name, asked = report.sections["config"]["model"], _asked(Path(path))
        typed = model if model is not None else _found(asked, "model")
        called = typed or ("" if name == DEFAULT.name else name)
        own = _found(asked, "data") if data is None else data
        return cls(report, path, called, own, _found(asked, "tokenizer"), bool(typed))


def _asked(path: Path) -> dict[str, object]:
    """The last entry of the run.json beside a report; nothing where there is none that can be read."""
    home = path if path.is_dir() else path.parent
    try:
        found = json.loads(store.read_whole(home / RUN, LARGEST))["runs"][-1]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _found(asked: dict[str, object], what: str) -> str | None:
    """What was typed; a path from there is one from here."""
    typed, there = asked.get(what), asked.get("directory")
    if not isinstance(typed, str) or not isinstance(there, str) or not (typed + there).isprintable():
        return None
    return as_called_from(".", typed, there=there)


def refuse_files(home: Path, names: "Iterable[str]", *, overwrite: bool) -> None:
    """Raises for a directory in which these files could not be written, or must not be."""
    listed = list(names)
    with store_errors(home):
        refuse_place(home, listed)
        for name in listed:
            if not overwrite and os.path.lexists(home / name):
                raise InputError(f"{home / name}: is there already; use another directory (--output) or --overwrite")
