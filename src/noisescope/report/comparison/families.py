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

from ..figures import Interval
from ..rows import Place, Sections, places

__all__ = ["FAMILIES", "PREDICTED", "Family", "Row"]

FAMILIES = ("operator", "window", "group", "layer", "cell")
PREDICTED = ("layer", "cell")
"""those in which rows can be read off the map"""


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
    def of(cls, kind: str, before: Sections, after: Sections) -> "Family":
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


def _question(kind: str, sections: Sections) -> tuple[Any, ...]:
    """What the figures of a family follow from, beside the model and the data."""
    config = sections["config"]
    scale, of_layers = config["noise_scale"], config.get("layer_noise_scale")
    if kind in ("operator", "cell"):
        return scale, config.get("error_type")
    return scale if of_layers is None else of_layers, config.get("error_type"), config.get("operators")


def _rows(kind: str, sections: Sections, *, predictions: bool) -> Iterator[Row]:
    if kind == "cell":
        yield from _predicted_cells(sections) if predictions else _checked_cells(sections)
    elif kind == "layer":
        yield from (row for row in _layers(sections) if predictions or not row.predicted)
    else:
        yield from (Row(place.name, place) for place in places(_level(kind, sections), kind))


def _level(kind: str, sections: Sections) -> Sections:
    levels: dict[str, Sections] = {
        "operator": sections["operator_analysis"],
        "window": sections["layer_analysis"],
        "group": sections["metrics"].get("groups", {}),
    }
    return levels[kind]


def _layers(sections: Sections) -> Iterator[Row]:
    """One that was injected is another row than one read off the map, which is only nearly the same."""
    for name, row in sections["metrics"].get("layers", {}).items():
        if not row:
            continue
        if "failed" in row:
            yield Row(
                f"{name} (measured)", Place("layer", name, failed=row["failed"], broken=row.get("non_finite", True))
            )
            continue
        injected = row["how"] == "measured"
        place = Place("layer", name, kl=Interval.of(row["kl"]), severity="inconclusive")
        yield Row(f"{name} (measured)" if injected else name, place, predicted=not injected)


def _predicted_cells(sections: Sections) -> Iterator[Row]:
    for cell in sections["map"].get("cells", ()):
        place = _cell(cell, cell["predicted"])
        yield Row(place.name, place, predicted=True)


def _checked_cells(sections: Sections) -> Iterator[Row]:
    for cell in sections["map"].get("cells", ()):
        if cell["measured"]:
            place = _cell(cell, cell["measured"])
            yield Row(f"{place.name} (measured)", place)


def _cell(cell: Sections, kl: Any) -> Place:
    return Place("cell", f"{cell['layer']} {cell['operator']}", kl=Interval.of(kl), severity="inconclusive")
