"""What a comparison found. Prints as a person would say it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..report.divergence import render_comparison, render_comparison_summary, save_comparison
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

    def to_json(self) -> str:
        """Strict JSON; the same comparison gives the same text."""
        return render_comparison(self.sections, "json")

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same comparison gives the same text."""
        return render_comparison(self.sections, "md")

    def to_html(self) -> str:
        """One page that holds everything it shows, to be opened in a browser; the same comparison, the same text."""
        return render_comparison(self.sections, "html")

    def save(self, directory: str | Path) -> Path:
        """Writes `comparison.md`, `comparison.html` and, last, `comparison.json` into a directory; the page to open.

        The directory is made if needed, and files that are there are replaced.
        """
        return save_comparison(self.sections, directory)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return render_comparison_summary(self.sections)

    def __str__(self) -> str:
        return "\n".join(lines(self.sections))
