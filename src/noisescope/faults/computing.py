"""Faults of the arithmetic: an operator that is computed in another way, from the same arguments.

A product is taken apart along the indices that it sums over. Whatever its spelling, its pieces are products of the same
spelling, with narrower factors.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..injection import plain_name
from ..injection.calls import PARAMETERS
from .kinds import Kind, register

__all__ = ["BLOCK", "round_bits"]

BLOCK = 16
"""products that are summed in float32 before they go to the accumulator"""

Along: TypeAlias = list[tuple[str, int]]
"""an index that is summed over: the factors that have it, and as which of their dimensions"""


def _low_precision_accumulate(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bits: float
) -> Any:
    """The product with an accumulator that rounds to so many bits of mantissa every sixteen terms.

    An addend (a bias) is what the accumulator holds at first, and is rounded with the first terms.
    """
    compute, given, sums, addend = _take_apart(function, args, kwargs)
    total: Tensor | None = None
    for piece in _pieces(given, sums):
        term = compute(**(given | piece if total is None else given | piece | addend))
        total = round_bits(term if total is None else total + term, int(bits))
    return compute(**given) if total is None else total


def _pieces(given: dict[str, Any], sums: list[Along]) -> Iterator[dict[str, Tensor]]:
    """The factors, narrowed to one element of each summed index and to sixteen of the last."""
    if not sums:
        return
    sizes = [given[along[0][0]].shape[along[0][1]] for along in sums]
    steps = [1] * (len(sizes) - 1) + [BLOCK]
    ranges = [range(0, size, step) for size, step in zip(sizes, steps, strict=True)]
    for starts in product(*ranges):
        piece: dict[str, Tensor] = {}
        for along, start, size, step in zip(sums, starts, sizes, steps, strict=True):
            for name, dim in along:
                piece[name] = piece.get(name, given[name]).narrow(dim, start, min(step, size - start))
        yield piece


# --- products, however they are spelled -------------------------------------------------------------------------

_PLAIN = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm")
"""products that sum over one index, at a known place of each factor"""


def _take_apart(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Tensor], dict[str, Any], list[Along], dict[str, Any]]:
    """What computes it, its arguments by name, what it sums over, and the arguments that take its addend away."""
    name = (plain_name(function) or "").strip("_")
    if name == "einsum":
        return _einsum(args)
    if name == "grouped_mm" and len(args) > 1:
        return _grouped(function, args, kwargs)
    if name not in _PLAIN:
        raise InputError(f"low_precision_accumulate: {name} is no product that can be taken apart")
    renamed = {("input" if key == "self" else key): value for key, value in kwargs.items() if key != "out"}
    given = dict(zip(PARAMETERS[name], args, strict=False)) | renamed
    left, right = PARAMETERS[name][-2:] if name != "linear" else ("input", "weight")
    across = -1 if name == "linear" or given[right].ndim == 1 else -2
    addend: dict[str, Any] = {"bias": None} if name == "linear" else {}
    if name in ("addmm", "baddbmm"):
        addend = {"input": torch.zeros_like(given["input"])}
    return getattr(F if name == "linear" else torch, name), given, [[(left, -1), (right, across)]], addend


def _grouped(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Tensor], dict[str, Any], list[Along], dict[str, Any]]:
    left, right, *more = args
    if left.ndim == right.ndim == 2:
        raise InputError("low_precision_accumulate: a grouped product whose groups lie along its sum is not known")

    def compute(left: Tensor, right: Tensor, **kwargs: Any) -> Tensor:
        found: Tensor = function(left, right, *more, **kwargs)
        return found

    addend = {"bias": None} if kwargs.get("bias") is not None else {}
    return compute, {"left": left, "right": right, **kwargs}, [[("left", -1), ("right", -2)]], addend


def _einsum(args: tuple[Any, ...]) -> tuple[Callable[..., Tensor], dict[str, Any], list[Along], dict[str, Any]]:
    equation, *operands = args
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if not isinstance(equation, str) or len(operands) != 2:
        raise InputError("low_precision_accumulate: einsum is known as an equation of two operands only")
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "->" not in equation:
        output = "".join(sign for sign in inputs if inputs.count(sign) == 1)
    places = [_dimensions(term) for term in terms]
    letters = dict.fromkeys(letter for found in places for letter in found if letter not in output)
    sums = [[(str(at), found[letter]) for at, found in enumerate(places) if letter in found] for letter in letters]

    if any(len({operands[int(at)].shape[dim] for at, dim in along}) > 1 for along in sums):
        raise InputError("low_precision_accumulate: einsum that repeats an operand along its sum is not known")

    def compute(**given: Tensor) -> Tensor:
        return torch.einsum(equation, given["0"], given["1"])

    return compute, {"0": operands[0], "1": operands[1]}, sums, {}


def _dimensions(term: str) -> dict[str, int]:
    """The letters of an operand -> its dimension, counted from the end after an ellipsis."""
    if len(set(term.replace(".", ""))) < len(term.replace(".", "")):
        raise InputError("low_precision_accumulate: einsum with a letter twice in one operand is not known")
    before, dots, after = term.partition("...")
    if not dots:
        return {letter: at for at, letter in enumerate(before)}
    return {letter: at for at, letter in enumerate(before)} | {
        letter: at - len(after) for at, letter in enumerate(after)
    }


def round_bits(value: Tensor, bits: int) -> Tensor:
    """The value rounded to so many bits of mantissa, to nearest, ties to even."""
    mantissa, exponent = torch.frexp(value.double())
    rounded = torch.ldexp(torch.round(torch.ldexp(mantissa, torch.tensor(bits + 1))), exponent - bits - 1)
    return torch.where(value.isfinite(), rounded.to(value.dtype), value)


# --- softmax ----------------------------------------------------------------------------------------------------


def _lut_exp(_function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: float) -> Any:
    """Softmax with exp looked up at multiples of the step."""
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    x: Tensor = given["input"]
    if given.get("dim") is None:
        raise InputError("lut_exp: softmax is called without a dim")
    dim = int(given["dim"])
    if (dtype := given.get("dtype")) is not None and dtype.itemsize > x.dtype.itemsize:
        x = x.to(dtype)
    shifted = x - x.amax(dim, keepdim=True)
    table = torch.exp(torch.round(shifted / step) * step)
    return table / table.sum(dim, keepdim=True)


register(
    Kind(
        "low_precision_accumulate",
        7,
        recompute=_low_precision_accumulate,
        operators=("linear", "matmul", "bmm"),
        before_cast=True,
        least=1,
        whole=True,
    )
)
register(Kind("lut_exp", 2**-4, recompute=_lut_exp, operators=("softmax",), before_cast=True, most=16.0))
