"""The evidence by layer and operator: all calls of an operator in a layer are one cell of the picture.

A cell shows its worst call. A suspect that is no call of its own has a cell too: a step inside a fused kernel, or a
weight in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, log10
from typing import Any, Final, Literal, TypeAlias

from ...operators import OPERATORS
from ..figures import plural
from ..layers import in_model_order, label
from ..page.table import Kind, Table
from ..rows import Sections
from .words import again, identities, on_host

__all__ = ["Cell", "cells", "columns", "drawn", "operators", "table"]

Row: TypeAlias = Mapping[str, Any]
State: TypeAlias = Literal["ratio", "infinite", "same", "unknown", "unasked"]
"""how it is drawn: by its ratio, as the strongest, as bit-equal, as without a known bound, as not asked of the host"""

OUTSIDE: Final = "outside"
"""of all layers"""


@dataclass(frozen=True)
class Cell:
    """One operator of one layer: its calls, and the suspect that it is, if it is one."""

    layer: int | str
    operator: str
    calls: tuple[Row, ...]
    suspect: Row | None = None

    @property
    def worst(self) -> Row | None:
        """The call that is furthest off."""
        return max(self.calls, key=_badness, default=None)

    @property
    def ratio(self) -> float | None:
        """The largest error of its calls in units of the rounding bound."""
        return max((_ratio(call) for call in self.calls if call["ratio"] is not None), default=None)

    @property
    def state(self) -> State:
        """How it is drawn."""
        if self.ratio is not None and self.ratio > 0:
            return "infinite" if self.ratio == inf else "ratio"
        judged = [call["ratio"] is not None for call in self.calls]
        if judged and all(judged):
            return "same"
        return "unknown" if any(call["rule"] is not None for call in self.calls) else "unasked"

    @property
    def told(self) -> list[str]:
        """What is said about it, line by line."""
        found = [] if self.suspect is None else [f"suspect {self.suspect['rank']}: {self.suspect['kind']}"]
        call = self.worst
        if call is None:
            return [*found, *(self.suspect or {}).get("evidence", ())]
        several = f"the worst of {plural(len(self.calls), 'call')}: " if len(self.calls) > 1 else ""
        return [*found, several + call["site"], on_host(call), again(call), *identities(call)]


def cells(sections: Sections) -> list[Cell]:
    """All of them, in the order of the model."""
    calls: dict[tuple[int | str, str], list[Row]] = {}
    for call in sections["sites"]:
        calls.setdefault(_place(call), []).append(call)
    suspects: dict[tuple[int | str, str], Row] = {}
    for suspect in sections["suspects"]:
        suspects.setdefault(_place(suspect), suspect)
    order = {layer: at for at, layer in enumerate(in_model_order(layer for layer, _ in (*calls, *suspects)))}
    places = sorted(dict.fromkeys((*calls, *suspects)), key=lambda place: order[place[0]])
    return [Cell(*place, tuple(calls.get(place, ())), suspects.get(place)) for place in places]


def columns(found: Sequence[Cell]) -> list[int | str]:
    """The layers, from left to right."""
    return list(dict.fromkeys(cell.layer for cell in found))


def operators(found: Sequence[Cell]) -> list[str]:
    """From top to bottom: those of the catalogue, then whatever else was computed, in the blocks first."""
    names = list(dict.fromkeys(cell.operator for cell in sorted(found, key=lambda cell: isinstance(cell.layer, str))))
    known = [name for name in OPERATORS if name in names]
    return known + [name for name in names if name not in known]


def drawn(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as the script draws them."""
    across, down = columns(found), operators(found)
    return [
        {
            "column": across.index(cell.layer),
            "row": down.index(cell.operator),
            "state": cell.state,
            "log": log10(cell.ratio) if cell.state == "ratio" and cell.ratio else None,
            "suspect": cell.suspect is not None,
            "told": cell.told,
        }
        for cell in found
    ]


def table(found: Sequence[Cell]) -> Table:
    """The same for those who run no scripts."""
    heads: dict[str, Kind] = {"layer": "name", "operator": "name", "calls": "figure", "what was found": "text"}
    rows = [
        (label(cell.layer), cell.operator, str(len(cell.calls)), "; ".join(cell.told))
        for cell in sorted(found, key=lambda cell: (cell.suspect is None, -(cell.ratio or 0.0)))
    ]
    return Table.of("Every cell, suspects and the largest errors first", heads, rows)


def _place(row: Row) -> tuple[int | str, str]:
    layer = row["layer"]
    return (OUTSIDE if layer is None else layer), row["operator"]


def _ratio(call: Row) -> float:
    """What is no number is as bad as can be."""
    return inf if isnan(call["ratio"]) else float(call["ratio"])


def _badness(call: Row) -> tuple[bool, bool, float, int]:
    unjudged = call["rule"] is not None and call["ratio"] is None
    size = 0.0 if call["ratio"] is None else _ratio(call)
    return bool(call["faulty"]), unjudged, size, call["differing"] or 0
