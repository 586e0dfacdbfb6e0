"""The picture of a precision plan: bits across, KL upwards on a logarithmic scale, as shapes that a template draws.

The line is the least predicted KL at every average of bits; dots are what was run, with their intervals; rings are
single formats, predicted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

from ..figures import Interval, number
from ..rows import Sections

__all__ = ["Picture", "picture"]

WIDTH, HEIGHT = 640.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 14.0, 44.0


@dataclass(frozen=True)
class Dot:
    """A choice of formats, at its place."""

    x: float
    y: float
    low: float
    high: float
    name: str
    told: str
    kind: str
    """plan, run or single"""
    anchor: str
    """where its name stands: start or end"""


@dataclass(frozen=True)
class Picture:
    """Everything that is drawn, in units of the picture."""

    line: str
    dots: tuple[Dot, ...]
    across: tuple[tuple[float, str], ...]
    upwards: tuple[tuple[float, str], ...]
    frame: tuple[float, float, float, float]
    """left, top, right, bottom"""
    size: tuple[float, float]


@dataclass(frozen=True)
class _Scales:
    first: float
    last: float
    low: float
    high: float

    def x(self, bits: float) -> float:
        share = (bits - self.first) / (self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)

    def y(self, kl: float) -> float:
        share = (log10(max(kl, 10**self.low)) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - min(1.0, share) * (HEIGHT - TOP - BOTTOM), 2)


def picture(sections: Sections) -> Picture:
    """The trade-off of a plan."""
    scales = _scales(sections)
    line = " ".join(f"{scales.x(point['bits'])},{scales.y(point['kl'])}" for point in sections["curve"])
    return Picture(
        line,
        tuple(_dots(sections, scales)),
        tuple((scales.x(bits), f"{bits:g}") for bits in _ticks(scales)),
        tuple((scales.y(10.0**power), number(10.0**power)) for power in range(int(scales.low), int(scales.high) + 1)),
        (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
        (WIDTH, HEIGHT),
    )


def _dots(sections: Sections, scales: _Scales) -> Iterator[Dot]:
    run = {row["name"].removeprefix("all ") for row in sections["verified"]}
    for row in sections["uniform"]:
        if row["format"] not in run and 0 < row["predicted_kl"] < float("inf"):
            yield _dot(scales, row["bits"], row["predicted_kl"], None, row["format"], "single")
    for at, row in reversed(list(enumerate(sections["verified"]))):
        kl = Interval.of(row["kl"])
        if kl.finite:
            yield _dot(scales, row["bits"], kl.value, kl, row["name"].removeprefix("all "), "run" if at else "plan")


def _dot(scales: _Scales, bits: float, kl: float, known: Interval | None, name: str, kind: str) -> Dot:
    x, y = scales.x(bits), scales.y(kl)
    low, high = (y, y) if known is None else (scales.y(known.low), scales.y(known.high))
    told = f"{name}: {number(bits)} bits, KL {number(kl) + ' predicted' if known is None else known}"
    return Dot(x, y, low, high, name, told, kind, "end" if x > 0.75 * WIDTH else "start")


def _scales(sections: Sections) -> _Scales:
    bits = [row["bits"] for part in ("curve", "uniform", "verified") for row in sections[part]]
    kls = [*(row["kl"] for row in sections["curve"]), *_ends(sections["verified"])]
    kls += [row["predicted_kl"] for row in sections["uniform"]]
    shown = [log10(kl) for kl in kls if 0 < kl < float("inf")] or [-6.0, 0.0]
    low, high = floor(min(shown)), ceil(max(shown))
    return _Scales(floor(min(bits)), ceil(max(bits) + 0.01), float(low), float(max(high, low + 1)))


def _ends(rows: Iterable[Any]) -> Iterator[float]:
    for row in rows:
        yield from (row["kl"]["low"], row["kl"]["high"])


def _ticks(scales: _Scales) -> Iterator[float]:
    step = 1.0 if scales.last - scales.first <= 8 else 2.0
    bits = scales.first
    while bits <= scales.last:
        yield bits
        bits += step
