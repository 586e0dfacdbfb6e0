"""Smoothed: what was done to a model, group by group, and the model itself.

SmolLM2-135M-Instruct, int8 weights and int8 activations: 112 of 120 groups smoothed

layer  group                                    alpha  outliers       error
   12  input_layernorm -> q_proj k_proj v_proj    0.8  24.6x -> 2.0x  5.6% -> 1.1%
   13  input_layernorm -> q_proj k_proj v_proj    0.8  22.1x -> 2.0x  4.7% -> 1.1%
...
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from torch import nn

from ..measure.intervals import Estimate
from .finding import Skipped
from .logits import LogitChange

__all__ = ["GroupRow", "Smoothed"]

SHOWN = 10
"""groups that are printed: those that gained most"""


@dataclass(frozen=True)
class GroupRow:
    """What was done to one group."""

    layer: int
    name: str
    producer: str
    consumers: tuple[str, ...]
    """paths of modules, as the producer's"""
    alpha: float | None
    """None: left as it was"""
    ratio_before: float
    """largest channel of the consumers' input over the median"""
    ratio_after: float
    error_before: Estimate
    """of the consumers' outputs in the formats asked for, squared, as a share of what it is read against (`scaling`)"""
    error_after: Estimate

    @property
    def gain(self) -> float:
        """How many times smaller the error got."""
        return self.error_before.value / self.error_after.value if self.error_after.value > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Smoothed:
    """A smoothed model and how it came about."""

    model: nn.Module = field(repr=False)
    name: str
    groups: tuple[GroupRow, ...] = field(repr=False)
    skipped: tuple[Skipped, ...] = field(repr=False)
    logits: LogitChange
    weights: str
    activations: str
    asked_alpha: float | None
    powers_of_two: bool
    data: str
    """what it was calibrated on"""
    rows: int
    tokens: int
    seed: int

    @property
    def folded(self) -> tuple[GroupRow, ...]:
        """The groups that were changed."""
        return tuple(row for row in self.groups if row.alpha is not None)

    def __str__(self) -> str:
        return self.summary()

    def summary(self, *, verbose: bool = False) -> str:
        """What a person wants to know; with `verbose`, every group."""
        return "\n".join(self._lines(verbose=verbose))

    def _lines(self, *, verbose: bool) -> Iterator[str]:
        formats = f"{self.weights} weights and {self.activations} activations"
        yield f"{self.name}, {formats}: {len(self.folded)} of {len(self.groups)} groups smoothed"
        best = self.groups if verbose else sorted(self.folded, key=lambda row: -row.gain)[:SHOWN]
        if best:
            yield ""
            yield from table([HEAD, *map(cells, sorted(best, key=lambda row: row.layer))])
            more = 0 if verbose else len(self.folded) - len(best)
            yield f"and {more} more, with less gain\n" if more else ""
        yield from self._sentences()

    def _sentences(self) -> Iterator[str]:
        for (names, reason), layers in self._reasons().items():
            yield f"left alone in {layers} layer{'s' if layers > 1 else ''}: {names} ({reason})"
        moved = self.logits
        yield (
            f"same function: logits moved by at most {moved.largest:.2g} over {moved.tokens} tokens; they spread by "
            f"{moved.spread:.2g}, and rounding may move them by {moved.bound:.2g}"
            if moved.largest
            else f"same function: logits are the same bit for bit over {moved.tokens} tokens"
        )

    def _reasons(self) -> Counter[tuple[str, str]]:
        return Counter((" ".join(skip.names), skip.reason) for skip in self.skipped)

    @property
    def sections(self) -> dict[str, Any]:
        """Everything, as plain values: what `smoothing.json` holds."""
        return {
            "schema": "noisescope smoothing",
            "version": 1,
            "model": self.name,
            "config": {
                "weights": self.weights,
                "activations": self.activations,
                "alpha": self.asked_alpha,
                "powers_of_two": self.powers_of_two,
                "data": {"name": self.data, "rows": self.rows, "tokens": self.tokens},
                "seed": self.seed,
            },
            "logits": {**asdict(self.logits), "same_function": self.logits.is_rounding},
            "groups": [{**asdict(row), "gain": row.gain} for row in self.groups],
            "skipped": [asdict(skip) for skip in self.skipped],
        }

    def save(self, directory: str | Path, *, tokenizer: Any = None, overwrite: bool = False) -> Path:
        """An ordinary model directory: safetensors, configuration, tokenizer, and `smoothing.json` beside them.

        It appears whole or not at all. One that is there is refused, or with `overwrite` replaced if it is a smoothed
        model too.
        """
        from .saving import save

        return save(self, Path(directory), tokenizer=tokenizer, overwrite=overwrite)


HEAD = ("layer", "group", "alpha", "outliers", "error")


def cells(row: GroupRow) -> tuple[str, ...]:
    """A row as it is printed."""
    return (
        str(row.layer),
        row.name,
        "-" if row.alpha is None else f"{row.alpha:g}",
        f"{row.ratio_before:.1f}x -> {row.ratio_after:.1f}x",
        f"{_root(row.error_before)} -> {_root(row.error_after)}",
    )


def _root(error: Estimate) -> str:
    """Of the square, as a share."""
    return f"{sqrt(error.value):.2g}" if not error.value < 1 else f"{100 * sqrt(error.value):.2g}%"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows under each other, as wide as they need to be."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = [
            cell.rjust(width) if column in (0, 2) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(line).rstrip()
