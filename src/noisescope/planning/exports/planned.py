"""What an export reads of a precision plan: its weights, each with the format it is to be in."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import InputError, quoted
from ...noise.formats import Format, parse_format
from ...specs import Layer

__all__ = ["Inexpressible", "Planned", "PlannedWeight", "UnfitModel"]

_T = TypeVar("_T")


class Inexpressible(Exception):
    """What a tool cannot say; `export` makes one sentence of it, which begins with the tool's name."""


class UnfitModel(Inexpressible):
    """What a tool cannot say of a model, whatever the formats."""


@dataclass(frozen=True)
class PlannedWeight:
    """One weight of a plan."""

    path: str
    layer: Layer
    format: Format | None
    """None stays as it is"""
    axis: int | None = None
    """that its product sums over, where the plan says so: 0 for a Conv1D, as GPT-2 has them"""

    @property
    def low(self) -> Format | None:
        """The format, if it has fewer than 16 bits; else the weight is kept."""
        return self.format if self.format is not None and self.format.exact_dtype is None else None


@dataclass(frozen=True)
class Planned:
    """The weights of a plan, in the order of the model."""

    weights: tuple[PlannedWeight, ...]

    @classmethod
    def of(cls, sections: Mapping[str, Any]) -> "Planned":
        """From the plain sections of a `PrecisionPlan`; an InputError for anything else."""
        rows = sections.get("weights") if isinstance(sections, Mapping) else None
        if not isinstance(rows, list) or not rows:
            raise InputError("plan: has no weights, expected the sections of a precision plan")
        weights = tuple(_weight(number, row) for number, row in enumerate(rows))
        if len({weight.path for weight in weights}) < len(weights):
            raise InputError("plan: a weight is in it twice")
        return cls(weights)

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats of fewer than 16 bits, the most frequent first."""
        counts = Counter(weight.low for weight in self.weights)
        return tuple(form for form, _ in counts.most_common() if form is not None)

    @property
    def kept(self) -> tuple[str, ...]:
        """The paths that stay in 16 bit."""
        return tuple(weight.path for weight in self.weights if weight.low is None)

    def of_format(self, form: Format) -> tuple[str, ...]:
        """The paths that get this format."""
        return tuple(weight.path for weight in self.weights if weight.low == form)

    def spelled(self, spell: Callable[[Format], _T | None]) -> dict[str, _T | None]:
        """Path -> the tool's word for its format, None for what is kept; raises for formats that it has no word for.

        A weight is rounded for good, to the nearest: no tool here stores one that was rounded at random.
        """
        missing = [str(form) for form in self.formats if form.rounding != "nearest" or spell(form) is None]
        if missing:
            raise Inexpressible(f"has no {', '.join(missing)}")
        return {weight.path: None if weight.low is None else spell(weight.low) for weight in self.weights}

    @property
    def has_integers(self) -> bool:
        """Whether some format is one of integers."""
        return any(form.grid.mantissa_bits is None for form in self.formats)

    @property
    def rules(self) -> frozenset[str]:
        """How the scales of its formats are chosen, in the words of `noise.formats.scales`."""
        return frozenset(form.rule for form in self.formats)

    @property
    def transposed(self) -> bool:
        """Whether a weight that gets a format is known to be stored as inputs x outputs."""
        return any(weight.axis == 0 for weight in self.weights if weight.low is not None)

    @property
    def straight(self) -> bool:
        """Whether all weights that get a format are known to be stored as outputs x inputs."""
        return all(weight.axis == 1 for weight in self.weights if weight.low is not None)


def _weight(number: int, row: Any) -> PlannedWeight:
    path = row.get("path") if isinstance(row, Mapping) else None
    if not isinstance(path, str) or not path or "format" not in row:
        raise InputError(f"plan: weight {number} has no path and format, got {quoted(row)}")
    form = row["format"]
    return PlannedWeight(path, row.get("layer"), None if form is None else parse_format(form), row.get("axis"))
