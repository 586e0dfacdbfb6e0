"""What differs between two runs, by what it means for a comparison; and which runs cannot be compared at all.

    compared    model, weights, device, dtype, versions    what one compares for
    asked       noise, places, data                        what makes the same row mean something else
    other       seed, sizes of windows, thresholds         the rest of the configuration

Runs of models that are built differently have no row in common that means the same: they are refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ..rows import Sections

__all__ = ["Fact", "Facts", "refuse_other_structure"]

ASKED = (
    "noise_scale",
    "layer_noise_scale",
    "error_type",
    "layers",
    "operators",
    "data.name",
    "data.task",
    "data.rows",
    "data.fingerprint",
)
"""what must be equal in the configuration for figures to mean the same"""
_COMPARED = ("model", "weights")
"""what the configuration says of the model; the environment says the rest"""
_UNSET = {"layers": "all", "operators": "all", "layer_noise_scale": "as noise_scale"}
_BY_IMPLEMENTATION = frozenset({"attention", "matmul", "bmm", "softmax"})
"""operators that one and the same model has or has not, by the way its attention is computed"""


@dataclass(frozen=True)
class Fact:
    """Something that differs between the runs."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


@dataclass(frozen=True)
class Facts:
    """Everything that differs between two runs."""

    compared: tuple[Fact, ...]
    asked: tuple[Fact, ...]
    other: tuple[Fact, ...]

    @classmethod
    def between(cls, before: Sections, after: Sections) -> "Facts":
        """From configuration and environment, by their names there."""
        environment = tuple(_differing(before["environment"], after["environment"]))
        config = tuple(_differing(before["config"], after["config"]))
        return cls(
            compared=(*(fact for fact in config if fact.name in _COMPARED), *environment),
            asked=tuple(fact for name in ASKED for fact in config if fact.name == name),
            other=tuple(fact for fact in config if fact.name not in (*_COMPARED, *ASKED)),
        )

    @property
    def all(self) -> tuple[Fact, ...]:
        """In the order in which they matter."""
        return (*self.compared, *self.asked, *self.other)

    @property
    def said_first(self) -> list[str]:
        """What a reader has to know before any figure, a line each."""
        compared, asked = (", ".join(map(str, facts)) for facts in (self.compared, self.asked))
        return [
            f"differs: {compared}" if compared else "same model, same environment",
            f"asked differently: {asked}" if asked else "asked alike, of the same data",
        ]


def refuse_other_structure(before: Sections, after: Sections) -> None:
    """An error where the models have another number of layers, or each has operators that the other lacks.

    One that only lacks some may be the same model: kernels of another format or device hide what they compute.
    """
    left, right = before["coverage"], after["coverage"]
    if left["layers"] != right["layers"]:
        raise _refusal(f"{left['layers']} layers and {right['layers']}")
    one, other = _operators(left), _operators(right)
    if one - other and other - one:
        raise _refusal(f"{' '.join(sorted(one - other))} in one and {' '.join(sorted(other - one))} in the other")


def _refusal(got: str) -> InputError:
    return InputError(
        f"REPORT: got models with {got}, expected the same structure: no row of one means the same in the other; "
        "compare runs of one architecture"
    )


def _operators(coverage: Sections) -> set[str]:
    return {*coverage["sites"], *coverage["hidden"]} - _BY_IMPLEMENTATION


def _differing(before: Sections, after: Sections) -> Iterator[Fact]:
    left, right = _flat(before), _flat(after)
    for name in dict.fromkeys((*left, *right)):
        one, other = (_shown(name, found.get(name)) for found in (left, right))
        if one != other:
            yield Fact(name, one, other)


def _flat(table: Sections, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def _shown(name: str, value: Any) -> str:
    if value is None:
        return _UNSET.get(name, "not told")
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
