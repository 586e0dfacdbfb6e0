"""What a comparison found. Prints as a person would say it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..specs import Layer
from ..traces import Trace
from .blaming import LayerRow
from .judging import Judged

__all__ = ["Comparison"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two traces, compared."""

    reference: Trace
    suspect: Trace
    differences: Mapping[str, tuple[object, object]]
    """field of the environment -> what it is in each"""
    sites: tuple[Judged, ...]
    """in the order of their calls"""
    fed: tuple[Judged, ...]
    """the same where each block was given the reference's input"""
    first: Judged | None
    """where the divergence began; None if there is none beyond the floor"""
    layers: tuple[LayerRow, ...]
    only_reference: tuple[str, ...]
    only_suspect: tuple[str, ...]
    unlike: tuple[str, ...]
    judged: bool
    """False if the reference has no noise floor to judge by"""

    @property
    def diverges(self) -> bool:
        """True if something is beyond the noise floor."""
        return self.first is not None

    @property
    def sources(self) -> tuple[Layer, ...]:
        """Layers that add an error of their own."""
        return tuple(row.layer for row in self.layers if row.role == "source")

    @property
    def amplifiers(self) -> tuple[Layer, ...]:
        """Layers that carry an error that they inherit."""
        return tuple(row.layer for row in self.layers if row.role == "amplifier")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"first {self.first.site.name if self.first else None}"
