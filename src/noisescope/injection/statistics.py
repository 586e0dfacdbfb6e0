"""What was injected: counts, elements and the realised dose, by layer, operator and phase.

    layer  operator  phase       calls    elements   dose    mean rel. error   max
    9      softmax   forward        24     393 216   0.0500            0.0399  0.24
    ...

Sums stay on the device as tensors until somebody reads them, so that no operator waits for the device. They may be
read while another thread books, as autograd's do: what is read then is a list of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import gcd, isfinite

import torch
from torch import Tensor

from ..noise import Measured, Noise
from ..sites import Site
from ..specs import OUTSIDE, Layer, Phase

__all__ = ["InjectionStats", "Row", "sample"]

SAMPLE = 2**14
"""elements of each call that dense noise is measured on: if none is zero, the dose is known to 0.6% from one call"""

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class _Tally:
    """Running sums of one (layer, operator, phase)."""

    calls: int = 0
    elements: int = 0
    scale: float = 0.0
    sums: Tensor | None = None
    max_ratio: Tensor | None = None


@dataclass(frozen=True)
class Row:
    """One line of the statistics."""

    layer: Layer | None
    operator: str
    phase: Phase
    calls: int
    elements: int
    scale: float
    """the largest scale asked for here"""
    dose: float
    """the scale really applied, in the unit of the noise"""
    mean_rel_error: float
    max_rel_error: float
    measured: Measured


@dataclass
class InjectionStats:
    """The running statistics of one injection. Print it, iterate over its rows, or ask for totals."""

    noise: Noise
    _tallies: dict[tuple[Layer | None, str, Phase], _Tally] = field(default_factory=dict)

    def book(
        self,
        site: Site,
        elements: int,
        scale: float,
        before: Tensor | None,
        after: Tensor | None,
        full: Tensor | None = None,
    ) -> None:
        """Books one visit; `before` and `after` are the elements the dose is measured on, if any.

        `full` are the errors of the same elements at scale 1, of noise that tells them.
        """
        tally = self._tallies.setdefault((site.layer, site.operator, site.phase), _Tally())
        tally.calls += 1
        tally.scale = max(tally.scale, scale)
        if before is None or after is None:
            return
        tally.elements += elements
        sums, largest = _compare(before, after)
        sums = torch.cat([sums, _square_sum(full, sums)])
        if tally.sums is None or tally.max_ratio is None:
            tally.sums, tally.max_ratio = sums, largest
        else:
            tally.sums = tally.sums + sums.to(tally.sums.device)
            tally.max_ratio = torch.maximum(tally.max_ratio, largest.to(tally.max_ratio.device))

    @property
    def rows(self) -> list[Row]:
        """One row per layer, operator and phase, blocks in order between what precedes and follows them."""
        return sorted(self._rows(), key=lambda row: (row.phase == "backward", _depth(row.layer), row.operator))

    def _rows(self) -> Iterator[Row]:
        for (layer, operator, phase), tally in list(self._tallies.items()):
            seen = _read(tally)
            yield Row(
                layer,
                operator,
                phase,
                tally.calls,
                tally.elements,
                tally.scale,
                self.noise.dose(seen),
                seen.mean_rel_error,
                seen.max_ratio,
                seen,
            )

    def calls(self, *, layer: Layer | None = None, operator: str | None = None, phase: str | None = None) -> int:
        """How many values were disturbed, of one layer, operator or phase, or of all."""
        return sum(
            tally.calls
            for (at, name, when), tally in list(self._tallies.items())
            if layer in (None, at) and operator in (None, name) and phase in (None, when)
        )

    @property
    def by_layer(self) -> dict[Layer | None, dict[str, int]]:
        """{layer: {"forward": n, "backward": m}} of the layers that were touched."""
        return self._counts(0)

    @property
    def by_operator(self) -> dict[str, dict[str, int]]:
        """{operator: {"forward": n, "backward": m}} of the operators that were touched."""
        return self._counts(1)  # type: ignore[return-value]

    def _counts(self, part: int) -> dict[Layer | None, dict[str, int]]:
        found: dict[Layer | None, dict[str, int]] = {}
        for key, tally in sorted(self._tallies.items(), key=lambda item: (_depth(item[0][0]), item[0][1])):
            counts = found.setdefault(key[part], {"forward": 0, "backward": 0})
            counts[key[2]] += tally.calls
        return found

    @property
    def total(self) -> Measured:
        """Everything that was measured, summed."""
        return self.measured()

    def measured(self, *, layer: Layer | None = None) -> Measured:
        """What was measured in one layer, or in all, summed."""
        parts = [tally for (at, _, _), tally in list(self._tallies.items()) if layer in (None, at)]
        return _total(map(_read, parts))

    @property
    def dose(self) -> float:
        """The scale really applied, over all places."""
        return self.noise.dose(self.total)

    @property
    def elements(self) -> int:
        """How many elements were touched."""
        return sum(tally.elements for tally in list(self._tallies.values()))

    def reset(self) -> None:
        """Forgets everything counted so far."""
        self._tallies.clear()

    def __str__(self) -> str:
        if not self._tallies:
            return "nothing injected"
        head = ("layer", "operator", "phase", "calls", "elements", "dose", "mean rel. error", "max")
        table = [head] + [
            (
                str(row.layer),
                row.operator,
                row.phase,
                str(row.calls),
                f"{row.elements:,}".replace(",", " "),
                f"{row.dose:.4g}",
                f"{row.mean_rel_error:.3g}",
                f"{row.max_rel_error:.3g}",
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place < 3 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        )


def sample(value: Tensor, *, everything: bool) -> Tensor:
    """A copy of the elements that the dose is measured on: all, or evenly spaced rows."""
    value = value.detach()
    if everything or value.numel() <= SAMPLE:
        return value.reshape(-1).clone()
    rows = value.reshape(-1, value.shape[-1])
    step = len(rows) // min(len(rows), max(1, SAMPLE // rows.shape[1]))
    while gcd(step, len(rows)) > 1:  # so as not to meet the same position of every text
        step += 1
    return rows[::step, : 4 * SAMPLE].reshape(-1).clone()


def _compare(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the elements, in the order of `Measured`, and the largest relative error."""
    if before.is_cpu and before.numel():
        old = before.float() if before.dtype != torch.float64 else before
        error = after.to(old.dtype) - old
        ratio = (error / old).masked_fill_(old == 0, 0.0)
        squares = float(error.square().sum()), float(ratio.square().sum())
        if isfinite(sum(squares)):
            count, nonzero, changed = old.numel(), int(old.count_nonzero()), int(_differ(before, after).sum())
            sums = (count, count, nonzero, changed, float(old.abs().sum()), float(error.abs().sum()), *squares)
            return torch.tensor(sums, dtype=torch.float64), ratio.abs_().max().double()
    return _compare_all(before, after)


def _compare_all(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The same where values may not be finite, or are on a device that must not be waited for."""
    old, new = before.double(), after.double()
    finite = old.isfinite() & new.isfinite()
    size = old.abs().masked_fill_(~finite, 0.0)
    error = (new - old).abs_().masked_fill_(~finite, 0.0)
    nonzero = size > 0
    ratio = torch.where(nonzero, error / size, 0.0)
    sums = torch.stack(
        [
            torch.full((), float(old.numel()), dtype=torch.float64, device=old.device),
            finite.sum().double(),
            nonzero.sum().double(),
            _differ(before, after).sum().double(),
            size.sum(),
            error.sum(),
            error.square().sum(),
            ratio.square().sum(),
        ]
    )
    return sums, ratio.max() if ratio.numel() else sums.new_zeros(())


def _square_sum(full: Tensor | None, like: Tensor) -> Tensor:
    if full is None:
        return like.new_zeros(1)
    square = full.to(like.device).double().square()
    return square.masked_fill_(~square.isfinite(), 0.0).sum().view(1)


def _differ(before: Tensor, after: Tensor) -> Tensor:
    """Where bits changed: also from 0 to -0, and from one NaN to another."""
    integer = _SAME_SIZE[before.element_size()]
    return before.view(integer) != after.view(integer)


def _read(tally: _Tally) -> Measured:
    if tally.sums is None or tally.max_ratio is None:
        return Measured(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    count, finite, nonzero, changed, value, error, sq_error, sq_ratio, sq_full = tally.sums.tolist()
    counts = (int(count), int(finite), int(nonzero), int(changed))
    return Measured(*counts, value, error, sq_error, sq_ratio, float(tally.max_ratio), sq_full)


def _total(parts: Iterable[Measured]) -> Measured:
    total = Measured(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for part in parts:
        total = Measured(
            total.elements + part.elements,
            total.finite + part.finite,
            total.nonzero + part.nonzero,
            total.changed + part.changed,
            total.abs_value + part.abs_value,
            total.abs_error + part.abs_error,
            total.sq_error + part.sq_error,
            total.sq_ratio + part.sq_ratio,
            max(total.max_ratio, part.max_ratio),
            total.sq_full + part.sq_full,
        )
    return total


def _depth(layer: Layer | None) -> float:
    """Where a layer stands from input to output."""
    if isinstance(layer, int):
        return layer
    return -1.0 if layer in (None, OUTSIDE[0]) else 1e9 + OUTSIDE.index(str(layer))
