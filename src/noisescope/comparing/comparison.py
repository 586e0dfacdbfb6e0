"""What a comparison found. Prints as a person would say it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..specs import Layer
from ..traces import Trace
from .blaming import LayerRow
from .judging import Judged
from .words import lines

__all__ = ["EXIT_CODES", "Comparison"]

EXIT_CODES = {"within the noise floor": 0, "diverges": 10, "inconclusive": 11}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two traces, compared site by site."""

    reference: Trace
    suspect: Trace
    sites: tuple[Judged, ...]
    """in the order of their calls"""
    fed: tuple[Judged, ...]
    """the same where each layer was given the reference's input"""
    first: Judged | None
    """where the divergence began; None if there is none beyond the floor"""
    layers: tuple[LayerRow, ...]
    sections: Mapping[str, Any] = field(repr=False)
    """everything, as plain values"""

    @property
    def outcome(self) -> str:
        """`within the noise floor`, `diverges`, or `inconclusive` without a floor to judge by."""
        return str(self.sections["verdict"]["outcome"])

    @property
    def diverges(self) -> bool:
        """True if something is beyond the noise floor."""
        return self.first is not None

    @property
    def exit_code(self) -> int:
        """0 within the floor, 10 diverges, 11 inconclusive."""
        return EXIT_CODES[self.outcome]

    @property
    def sources(self) -> tuple[Layer, ...]:
        """Layers that add an error of their own."""
        return tuple(row.layer for row in self.layers if row.role == "source")

    @property
    def amplifiers(self) -> tuple[Layer, ...]:
        """Layers that carry an error that they inherit."""
        return tuple(row.layer for row in self.layers if row.role == "amplifier")

    def __str__(self) -> str:
        return "\n".join(lines(self.sections))
