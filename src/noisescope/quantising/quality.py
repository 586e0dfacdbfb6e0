"""What formats did to the values of a run: signal to noise, clipped and zeroed shares, a row a place."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..keys import Key
from ..noise.formats import Format, Quality, quality, sqnr_db
from ..specs import Layer
from .weights import Weight

__all__ = ["Meter", "Row", "table"]


@dataclass(frozen=True)
class Row:
    """One weight, or the activations that one module was given."""

    path: str
    layer: Layer
    what: str
    """weight or input"""
    format: Format
    quality: Quality

    @classmethod
    def of_weight(cls, weight: Weight, form: Format, key: Key) -> "Row":
        """A weight in a format."""
        return cls(weight.path, weight.layer, "weight", form, quality(form, weight.value, axis=weight.axis, key=key))


@dataclass
class Meter:
    """Sums over what a module was given, on the values' own device until they are read."""

    sums: Tensor = field(default_factory=lambda: torch.zeros(5, dtype=torch.float64))
    """squares of values, squares of errors, clipped, zeroed, other than 0"""
    seen: int = 0

    def see(self, form: Format, value: Tensor, rounded: Tensor) -> None:
        """Adds one call."""
        wide, error = value.detach().double(), rounded.double() - value.detach().double()
        nonzero = wide != 0
        found = torch.stack(
            [
                wide.square().sum(),
                error.square().sum(),
                torch.as_tensor(form.clipped_share(value) * value.numel(), dtype=torch.float64, device=value.device),
                ((rounded == 0) & nonzero).sum().double(),
                nonzero.sum().double(),
            ]
        )
        self.sums = self.sums.to(found.device) + found
        self.seen += value.numel()

    def row(self, path: str, layer: Layer, form: Format) -> Row:
        """What was seen."""
        signal, noise, clipped, zeroed, nonzero = self.sums.tolist()
        found = Quality(sqnr_db(signal, noise), clipped / self.seen, zeroed / max(1.0, nonzero))
        return Row(path, layer, "input", form, found)


def table(rows: Iterable[Row]) -> str:
    """For a terminal."""
    lines = [("layer", "place", "format", "SQNR", "clipped", "zeroed")] + [
        (
            str(row.layer),
            f"{row.path}.{row.what}",
            str(row.format),
            f"{row.quality.sqnr_db:.1f} dB",
            f"{row.quality.clipped:.2%}",
            f"{row.quality.zeroed:.2%}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
