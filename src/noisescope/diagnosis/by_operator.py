"""Level 1: noise on one operator type over all blocks, ranked; what lies outside the blocks has rows of its own.

Theory expects exponentials to be the most fragile, then norms, which divide by a variance, then products, then
activations; the order found is shown beside it.
"""

from collections.abc import Sequence
from typing import Any

from ..noise import Noise
from ..operators import OPERATORS
from ..points import Point
from ..specs import OUTSIDE, Layer, Selection
from .rows import Row
from .sensing import Cell

__all__ = ["CORE", "EXPECTED_ORDER", "operator_points", "order_panel", "together_points"]

CORE = tuple(name for name, row in OPERATORS.items() if row.core)
"""the operators that carry most of the arithmetic"""

EXPECTED_ORDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("softmax", ("softmax",)),
    ("norms", ("layer_norm", "rms_norm")),
    ("products", ("linear", "matmul", "bmm", "attention")),
    ("activations", ("silu", "gelu")),
)


def operator_points(cells: Sequence[Cell], noise: Noise, *, seed: int, trials: int) -> dict[str, Point]:
    """One point per operator type, over all blocks that have it, and one for each of embed, final_norm and head."""
    layers: dict[str, list[Layer]] = {}
    for layer, operator in cells:
        layers.setdefault(operator if isinstance(layer, int) else str(layer), []).append(layer)
    inside = {name: Selection(tuple(layers[name]), (name,)) for name in OPERATORS if name in layers}
    outside = {
        name: Selection((name,), tuple(operator for layer, operator in cells if layer == name))
        for name in OUTSIDE
        if name in layers
    }
    return {name: Point(selection, noise, seed, trials) for name, selection in {**inside, **outside}.items()}


def together_points(cells: Sequence[Cell], noise: Noise, *, seed: int, trials: int) -> dict[str, Point]:
    """All operators of the blocks at once, and the core ones."""
    inside = [cell for cell in cells if isinstance(cell[0], int)]
    layers = tuple(dict.fromkeys(layer for layer, _ in inside))
    present = tuple(name for name in OPERATORS if any(operator == name for _, operator in inside))
    core = tuple(name for name in present if name in CORE)
    wanted = {"all": present, "core": core if core != present else ()}
    return {name: Point(Selection(layers, found), noise, seed, trials) for name, found in wanted.items() if found}


def order_panel(rows: Sequence[Row]) -> dict[str, Any]:
    """The kinds of operators by their most fragile member, beside the order that theory expects."""
    ranked = sorted((row for row in rows if row.name not in OUTSIDE), key=lambda row: row.rank, reverse=True)
    kind_of = {name: kind for kind, names in EXPECTED_ORDER for name in names}
    found = list(dict.fromkeys(kind_of[row.name] for row in ranked if row.name in kind_of))
    expected = [kind for kind, _ in EXPECTED_ORDER if kind in found]
    return {
        "operators": [row.name for row in ranked],
        "found": found,
        "expected": expected,
        "as_expected": found == expected,
    }
