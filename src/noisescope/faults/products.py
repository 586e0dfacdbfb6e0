"""Products taken apart along the indices that they sum over, to be put together in another way.

Whatever its spelling, the pieces of a product are products of the same spelling, with narrower factors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..injection import plain_name
from ..injection.calls import PARAMETERS

__all__ = ["BLOCK", "Product", "take_apart"]

BLOCK = 16
"""products that are summed in float32 before they go to the accumulator"""

Along: TypeAlias = list[tuple[str, int]]
"""an index that is summed over: the factors that have it, and as which of their dimensions"""

_PLAIN = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm")
"""products that sum over one index, at a known place of each factor"""


@dataclass(frozen=True, eq=False)
class Product:
    """What computes a product, its arguments by name, what it sums over, and what takes its addend away."""

    compute: Callable[..., Tensor]
    given: Mapping[str, Any]
    sums: tuple[Along, ...]
    addend: Mapping[str, Any]

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the arguments that are multiplied."""
        return tuple(dict.fromkeys(name for along in self.sums for name, _ in along))

    @property
    def length(self) -> int:
        """How many terms the last sum has; 0 where nothing is summed."""
        return self._size(self.sums[-1]) if self.sums else 0

    def parts(self, block: int = BLOCK) -> Iterator[Tensor]:
        """The product of one element of each summed index and so many of the last; the addend is in the first."""
        more: Mapping[str, Any] = {}
        for piece in self._pieces(block):
            yield self.compute(**{**self.given, **piece, **more})
            more = self.addend

    def accumulated(self, rounded: Callable[[Tensor], Tensor]) -> Tensor:
        """The product whose sum so far is rounded after every block of terms.

        An addend (a bias) is what the accumulator holds at first, and is rounded with the first terms.
        """
        total: Tensor | None = None
        for part in self.parts():
            total = rounded(part if total is None else total + part)
        return self.whole() if total is None else total

    def whole(self, **changed: Any) -> Tensor:
        """The product at once, some of its factors replaced."""
        return self.compute(**{**self.given, **changed})

    def _pieces(self, block: int) -> Iterator[dict[str, Tensor]]:
        if not self.sums:
            return
        sizes = [self._size(along) for along in self.sums]
        steps = [1] * (len(sizes) - 1) + [block]
        ranges = [range(0, size, step) for size, step in zip(sizes, steps, strict=True)]
        for starts in product(*ranges):
            piece: dict[str, Tensor] = {}
            for along, start, size, step in zip(self.sums, starts, sizes, steps, strict=True):
                for name, dim in along:
                    piece[name] = piece.get(name, self.given[name]).narrow(dim, start, min(step, size - start))
            yield piece

    def _size(self, along: Along) -> int:
        name, dim = along[0]
        return int(self.given[name].shape[dim])


def take_apart(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product:
    """The product that a call computes; an InputError for a spelling that is not known."""
    name = (plain_name(function) or "").strip("_")
    if name == "einsum":
        return _einsum(args)
    if name == "grouped_mm" and len(args) > 1:
        return _grouped(function, args, kwargs)
    if name not in _PLAIN:
        raise InputError(f"{name} is no product that can be taken apart")
    renamed = {("input" if key == "self" else key): value for key, value in kwargs.items() if key != "out"}
    given = dict(zip(PARAMETERS[name], args, strict=False)) | renamed
    left, right = PARAMETERS[name][-2:] if name != "linear" else ("input", "weight")
    across = -1 if name == "linear" or given[right].ndim == 1 else -2
    addend: dict[str, Any] = {"bias": None} if name == "linear" else {}
    if name in ("addmm", "baddbmm"):
        addend = {"input": torch.zeros_like(given["input"])}
    return Product(getattr(F if name == "linear" else torch, name), given, ([(left, -1), (right, across)],), addend)


def _grouped(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product:
    left, right, *more = args
    if left.ndim == right.ndim == 2:
        raise InputError("a grouped product whose groups lie along its sum is not known")

    def compute(left: Tensor, right: Tensor, **kwargs: Any) -> Tensor:
        found: Tensor = function(left, right, *more, **kwargs)
        return found

    addend = {"bias": None} if kwargs.get("bias") is not None else {}
    return Product(compute, {"left": left, "right": right, **kwargs}, ([("left", -1), ("right", -2)],), addend)


def _einsum(args: tuple[Any, ...]) -> Product:
    equation, *operands = args
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if not isinstance(equation, str) or len(operands) != 2:
        raise InputError("einsum is known as an equation of two operands only")
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "->" not in equation:
        output = "".join(sign for sign in inputs if inputs.count(sign) == 1)
    places = [_dimensions(term) for term in terms]
    letters = dict.fromkeys(letter for found in places for letter in found if letter not in output)
    sums = [[(str(at), found[letter]) for at, found in enumerate(places) if letter in found] for letter in letters]

    if any(len({operands[int(at)].shape[dim] for at, dim in along}) > 1 for along in sums):
        raise InputError("einsum that repeats an operand along its sum is not known")

    def compute(**given: Tensor) -> Tensor:
        return torch.einsum(equation, given["0"], given["1"])

    return Product(compute, {"0": operands[0], "1": operands[1]}, tuple(sums), {})


def _dimensions(term: str) -> dict[str, int]:
    """The letters of an operand -> its dimension, counted from the end after an ellipsis."""
    if len(set(term.replace(".", ""))) < len(term.replace(".", "")):
        raise InputError("einsum with a letter twice in one operand is not known")
    before, dots, after = term.partition("...")
    if not dots:
        return {letter: at for at, letter in enumerate(before)}
    return {letter: at for at, letter in enumerate(before)} | {
        letter: at - len(after) for at, letter in enumerate(after)
    }
