"""The rows of a report that another report can have too, in families that are tested together.

    family     from                         how
    operator   noise on one operator        injected
    window     consecutive layers           injected
    group      early, middle, late layers   injected
    layer      single layers                injected, or predicted: the sum of its cells
    cell       an operator of a layer       predicted; a share of them was injected too, to check

A prediction follows from the noise that was asked for: to second order the KL grows with the square of its scale. Where
two runs were asked for different noise, predictions differ by that alone, with no scatter, and would be found to differ
whatever the models do. There only rows that were injected in both are paired.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..reading import UNKNOWN, Section, interval, number, part
from ..rows import Place, places

__all__ = ["FAMILIES", "PREDICTED", "Family", "Row"]

FAMILIES = ("operator", "window", "group", "layer", "cell")
PREDICTED = ("layer", "cell")
"""those in which rows can be read off the map"""
_LEVELS = {"operator": ("operator_analysis",), "window": ("layer_analysis",), "group": ("metrics", "groups")}


class Row(NamedTuple):
    """A place, whether it is read off the map, and the key under which its like is in the other report."""

    key: str
    place: Place
    predicted: bool = False


@dataclass(frozen=True)
class Family:
    """The rows of one kind in two reports."""

    kind: str
    before: dict[str, Row]
    after: dict[str, Row]
    asked_alike: bool

    @classmethod
    def of(cls, kind: str, before: Section, after: Section) -> "Family":
        """Those that may be compared, by key; without predictions where the noise is another."""
        alike = _question(kind, before) == _question(kind, after)
        rows = [{row.key: row for row in _rows(kind, s, predictions=alike)} for s in (before, after)]
        return cls(kind, rows[0], rows[1], alike)

    @property
    def pairs(self) -> list[tuple[Row, Row]]:
        """What is in both."""
        return [(row, self.after[key]) for key, row in self.before.items() if key in self.after]

    @property
    def only_before(self) -> tuple[str, ...]:
        """What the second report does not have."""
        return tuple(key for key in self.before if key not in self.after)

    @property
    def only_after(self) -> tuple[str, ...]:
        """What the first report does not have."""
        return tuple(key for key in self.after if key not in self.before)


def _question(kind: str, sections: Section) -> tuple[Any, ...]:
    """What the figures of a family follow from, beside the model and the data."""
    config = part(sections, "config")
    scale, of_layers = config.get("noise_scale"), config.get("layer_noise_scale")
    if kind in ("operator", "cell"):
        return number(scale), config.get("error_type")
    return number(scale if of_layers is None else of_layers), config.get("error_type"), config.get("operators")


def _rows(kind: str, sections: Section, *, predictions: bool) -> Iterator[Row]:
    if kind == "cell":
        yield from _predicted_cells(sections) if predictions else _checked_cells(sections)
    elif kind == "layer":
        yield from (row for row in _layers(sections) if predictions or not row.predicted)
    else:
        found = sections
        for name in _LEVELS[kind]:
            found = part(found, name)
        yield from (Row(place.name, place) for place in places(found, kind))


def _layers(sections: Section) -> Iterator[Row]:
    """One that was injected is another row than one read off the map, which is only nearly the same."""
    rows = part(part(sections, "metrics"), "layers")
    for place in places(rows, "layer"):
        injected = rows[place.name].get("how") == "measured"
        yield Row(f"{place.name} (measured)" if injected else place.name, place, predicted=not injected)


def _predicted_cells(sections: Section) -> Iterator[Row]:
    for cell in part(sections, "map").get("cells") or ():
        place = _cell(cell, cell.get("predicted") or cell["kl"])
        yield Row(place.name, place, predicted=True)


def _checked_cells(sections: Section) -> Iterator[Row]:
    for cell in part(sections, "map").get("cells") or ():
        if cell.get("measured"):
            place = _cell(cell, cell["measured"])
            yield Row(f"{place.name} (measured)", place)


def _cell(cell: Section, kl: Any) -> Place:
    return Place("cell", f"{cell['layer']} {cell['operator']}", interval(kl), UNKNOWN, "inconclusive")
