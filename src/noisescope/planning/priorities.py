"""Three priorities of a migration: who gets which precision, and how strictly it is checked.

1   avalanche windows, a MAPE above 5%, the top 10% of risk    FP16   validate first   MAPE < 5%
2   the next 20% of risk                                       BF16   spot check       MAPE < 10%
3   the rest                                                   INT8   standard
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from ..report.figures import plural, share
from ..specs import Layer
from .risk import LayerRisk

__all__ = ["PRIORITIES", "Priority", "evidence", "fallback", "prioritise"]


@dataclass(frozen=True)
class Priority:
    """What becomes of the layers of one priority."""

    number: int
    precision: str
    validation: str
    max_mape: float | None
    raised: str
    """the precision to raise a layer to that misses"""


OFF = 0.05
"""a MAPE above which a layer is of priority 1 whatever its risk"""
PRIORITIES = (
    Priority(1, "FP16", "validate first", OFF, "FP32"),
    Priority(2, "BF16", "spot check", 0.10, "FP16"),
    Priority(3, "INT8", "standard", None, "BF16"),
)
TOP, NEXT = 0.10, 0.20
"""shares of the layers, by risk: the first are of priority 1, the next of priority 2"""


def prioritise(rows: Sequence[LayerRisk]) -> dict[Layer, Priority]:
    """Layer -> its priority; `rows` are sorted by risk."""
    top = {row.layer for row in rows[: ceil(TOP * len(rows))]}
    first = [row.layer for row in rows if row.layer in top or row.avalanches or is_off(row)]
    others = [row.layer for row in rows if row.layer not in first]
    second = others[: ceil(NEXT * len(rows))]
    numbers = {**dict.fromkeys(others, 2), **dict.fromkeys(first, 0), **dict.fromkeys(second, 1)}
    return {layer: PRIORITIES[at] for layer, at in numbers.items()}


def is_off(row: LayerRisk) -> bool:
    """Whether its MAPE is not known to be within the limit of priority 1: all of the interval has to be."""
    return row.divergence is not None and row.divergence.mape.high > OFF


def fallback(row: LayerRisk, priority: Priority) -> str:
    """What to do if the layer misses its limit."""
    if row.outliers:
        return f"smooth it (it has outlier channels), or raise its precision to {priority.raised}"
    return f"raise its precision to {priority.raised}"


def evidence(row: LayerRisk, priority: Priority) -> Iterator[str]:
    """Why it has this priority, in sentences."""
    yield from (f"in the avalanche window {name}" for name in row.avalanches)
    if is_off(row) and row.divergence is not None:
        mape = row.divergence.mape
        yield f"MAPE {share(mape.value, (mape.low, mape.high))} is not within {OFF:.0%}"
    if not row.avalanches and not is_off(row):
        yield {1: f"among the top {TOP:.0%} of risk", 2: f"among the next {NEXT:.0%} of risk"}.get(
            priority.number, "below these in risk"
        )
    if row.outliers:
        yield plural(row.outliers, "outlier channel")
