"""Level 2: sliding windows of layers, groups of them, and avalanche points.

A window is worth more than a single layer: errors of neighbours add up and are passed on, and a window shows by how
much more than the sum of its layers (`amplification`). An avalanche point is a window that loses more than the
threshold and at least 1.5 times as much as each nearest window that shares no layer with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

from ..errors import InputError
from ..measure.intervals import Estimate

__all__ = [
    "Window",
    "amplification",
    "group_windows",
    "identify_avalanche_points",
    "layer_degradation",
    "longest_run",
    "sliding_windows",
]

STANDS_OUT = 1.5
CRITICAL = 0.20


@dataclass(frozen=True)
class Window:
    """Consecutive layers, both ends included."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """As people write it: L9-11, or L9."""
        return f"L{self.first}-{self.last}" if self.last > self.first else f"L{self.first}"

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers in it."""
        return tuple(range(self.first, self.last + 1))


def sliding_windows(layers: Sequence[int], size: int, step: int) -> list[Window]:
    """Windows over layers that follow each other; the last of each run ends at its last layer, whatever the step."""
    if size > len(layers):
        raise InputError(f"window_size: got {size}, the model has {len(layers)} layers to choose from")
    found = []
    for run in _runs(layers):
        starts = list(range(0, len(run) - size + 1, step))
        if starts and starts[-1] != len(run) - size:
            starts.append(len(run) - size)
        found += [Window(run[start], run[start + size - 1]) for start in starts]
    return found


def longest_run(layers: Sequence[int]) -> int:
    """How many of the layers follow each other, at most."""
    return max(map(len, _runs(layers)), default=0)


def _runs(layers: Sequence[int]) -> list[list[int]]:
    """The layers, cut where one is left out."""
    found: list[list[int]] = []
    for layer in layers:
        if found and layer == found[-1][-1] + 1:
            found[-1].append(layer)
        else:
            found.append([layer])
    return found


def group_windows(layers: Sequence[int]) -> dict[str, Window]:
    """Early, middle and late thirds; where layers do not divide by three the later groups are smaller."""
    names = ("early", "middle", "late")
    groups = min(len(names), len(layers))
    base, more = divmod(len(layers), max(groups, 1))
    found, start = {}, 0
    for number, name in enumerate(names[:groups]):
        size = base + (number < more)
        found[name] = Window(layers[start], layers[start + size - 1])
        start += size
    return found


def identify_avalanche_points(
    windows: Mapping[str, Mapping[str, Any]], threshold: float = 0.15
) -> list[dict[str, Any]]:
    """The windows from which damage spreads: [{layer_range, degradation, severity}], the worst first.

    Compared with the nearest windows that share no layer: overlapping ones can hardly differ by a factor of 1.5. A
    window that makes the output non-finite loses everything; one of which nothing is known is passed over.
    """
    known = {name: (row, loss) for name, row in windows.items() if (loss := _loss(row)) is not None}
    rows = sorted(known.items(), key=lambda item: (item[1][0]["start_layer"], item[1][0]["end_layer"]))
    found = []
    for name, (row, loss) in rows:
        if not loss > threshold:
            continue
        before = [lost for _, (other, lost) in rows if other["end_layer"] < row["start_layer"]]
        after = [lost for _, (other, lost) in rows if other["start_layer"] > row["end_layer"]]
        if all(loss >= STANDS_OUT * lost for lost in (*before[-1:], *after[:1])):
            severity = "CRITICAL" if loss > CRITICAL else "HIGH"
            found.append({"layer_range": name, "degradation": loss, "severity": severity})
    return sorted(found, key=lambda point: -point["degradation"])


def layer_degradation(windows: Mapping[str, Mapping[str, Any]]) -> dict[int, float]:
    """A layer's own degradation: the mean over the windows that contain it."""
    found: dict[int, list[float]] = {}
    for row in windows.values():
        for layer in range(row["start_layer"], row["end_layer"] + 1):
            if (loss := _loss(row)) is not None:
                found.setdefault(layer, []).append(loss)
    return {layer: sum(losses) / len(losses) for layer, losses in sorted(found.items())}


def _loss(row: Mapping[str, Any]) -> float | None:
    """What a window lost: all of it where it made the output non-finite, None where nothing is known."""
    if "failed" in row:
        return 1.0 if row.get("non_finite", True) else None
    loss: float | None = row.get("degradation")
    return loss


def amplification(window: Estimate, layers: Sequence[Estimate]) -> Estimate | None:
    """KL of a window over the sum of its layers' KLs; None where these are nothing.

    The interval takes the figures as independent, on the logarithm.
    """
    total = sum(layer.value for layer in layers)
    if not (0 < window.value < inf and 0 < total < inf):
        return None
    value = window.value / total
    of_layers = sqrt(sum(layer.stderr**2 for layer in layers)) / total
    spread = sqrt((window.stderr / window.value) ** 2 + of_layers**2)
    ends = (exp(log(value) - 1.96 * spread), exp(log(value) + 1.96 * spread))
    return Estimate(value, *ends, value * spread, window.n)
