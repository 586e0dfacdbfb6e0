"""Plans as other tools read them: the registry of exports, and the two functions that use it.

    for found in exports(plan.sections).made:
        print(found.tool, found.file, *found.notes, sep="\\n  ")

An export says what the plan says or is refused: the elements, the blocks and the kind of scale of every weight are
those of the plan. How a tool then chooses a scale or rounds within that format is its own, and a note says where it
differs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ... import store
from ...errors import InputError, unknown_name
from .planned import Inexpressible, Planned, UnfitModel

__all__ = ["EXPORTS", "Export", "Exports", "Tool", "Written", "export", "exports", "register"]


@dataclass(frozen=True)
class Export:
    """A plan as one tool reads it."""

    tool: str
    file: str
    """what the file is called"""
    text: str = field(repr=False)
    notes: tuple[str, ...] = ()
    """what the tool does otherwise than the plan was measured with, and what it has to be told beside the file"""


@dataclass(frozen=True)
class Exports:
    """A plan as every tool reads it that can."""

    made: tuple[Export, ...]
    refused: Mapping[str, str]
    """tool -> why not, in one sentence"""

    def save(self, directory: str | Path) -> list[Path]:
        """Writes each file into a directory, which is made if needed.

        Those that are there are replaced, and those of tools that refuse are removed: they would be of another plan.
        """
        home = store.make_directory(Path(directory))
        for stale in (home / EXPORTS[name].file for name in self.refused):
            if stale.is_file():
                store.remove(stale)
        for one in self.made:
            store.atomic_write(home / one.file, one.text.encode())
        return [home / one.file for one in self.made]


@dataclass(frozen=True)
class Written:
    """What the function of a tool gives."""

    text: str
    notes: Mapping[str, bool]
    """note -> whether it applies to this plan"""


Write: TypeAlias = Callable[[Planned], Written]


@dataclass(frozen=True)
class Tool:
    """A tool that reads plans."""

    name: str
    title: str
    """as its authors write it"""
    file: str
    formats: tuple[str, ...]
    """some that it has, to plan with"""
    write: Write


EXPORTS: dict[str, Tool] = {}


def register(name: str, *, title: str, file: str, formats: tuple[str, ...]) -> Callable[[Write], Write]:
    """Adds the function that writes plans for a tool; it raises `Inexpressible` for a plan that the tool cannot say."""

    def add(write: Write) -> Write:
        if name in EXPORTS:
            raise InputError(f'export "{name}" is registered already')
        EXPORTS[name] = Tool(name, title, file, formats, write)
        return write

    return add


def export(sections: Mapping[str, Any], tool: str) -> Export:
    """The sections of a precision plan as one tool reads them.

    Raises:
        InputError: for a tool that is not known, or one that cannot say what the plan says.
    """
    if tool not in EXPORTS:
        raise unknown_name("export", tool, EXPORTS)
    return _written(Planned.of(sections), EXPORTS[tool])


def exports(sections: Mapping[str, Any]) -> Exports:
    """The sections of a precision plan as every tool reads them, and why the others cannot."""
    planned = Planned.of(sections)
    made, refused = list[Export](), dict[str, str]()
    for name, tool in EXPORTS.items():
        try:
            made.append(_written(planned, tool))
        except InputError as why:
            refused[name] = str(why)
    return Exports(tuple(made), refused)


def _written(planned: Planned, tool: Tool) -> Export:
    try:
        if not planned.formats:
            raise Inexpressible("has nothing to do: the plan keeps all weights in 16 bit")
        found = tool.write(planned)
    except Inexpressible as what:
        others = "" if isinstance(what, UnfitModel) else f"; plan with --formats {','.join(tool.formats)}"
        raise InputError(f"{tool.title} {what}{others}") from None
    return Export(tool.name, tool.file, found.text, tuple(note for note, applies in found.notes.items() if applies))
