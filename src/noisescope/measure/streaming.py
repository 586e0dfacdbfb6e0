"""Sums over tensors of any size and dtype in float64, some values at a time: nothing large is ever copied.

A tensor that is not contiguous is the exception: it is laid out anew, in its own dtype.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import InputError
from .divergence import home_of

__all__ = ["Term", "Values", "as_tensor", "pair_up", "pairs", "sums"]

Values: TypeAlias = Tensor | ArrayLike
"""a tensor of any dtype on any device, an array, or lists of numbers"""
Term: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""what is summed, from some values of the reference and the same of what was measured"""

CHUNK = 2**20
"""values turned into float64 at a time"""


def as_tensor(values: Values, *, what: str = "values") -> Tensor:
    """The values as a tensor without a gradient; those of a tensor in their own dtype, others in float64."""
    if not isinstance(values, Tensor):
        try:
            return torch.as_tensor(values, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{what}: got {type(values).__name__}, expected a tensor or an array of numbers") from None
    if values.is_complex():
        raise InputError(f"{what}: got {str(values.dtype).removeprefix('torch.')}, expected real numbers")
    values = values.detach()
    return values if values.layout == torch.strided else values.to_dense()


def pair_up(reference: Values, measured: Values) -> tuple[Tensor, Tensor]:
    """Both as tensors, refused unless their shapes are the same."""
    first, second = as_tensor(reference, what="reference"), as_tensor(measured, what="measured")
    if first.shape != second.shape:
        raise InputError(
            f"reference and measured: got shapes {list(first.shape)} and {list(second.shape)}, expected the same"
        )
    return first, second


def pairs(reference: Tensor, measured: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some values of each at a time, as float64 vectors on the reference's device."""
    home = home_of(reference.device)
    for first, second in zip(reference.reshape(-1).split(CHUNK), measured.reshape(-1).split(CHUNK), strict=True):
        if len(first):
            yield first.to(home, torch.float64), second.to(home, torch.float64)


def sums(reference: Tensor, measured: Tensor, *terms: Term) -> tuple[float, ...]:
    """The sum of each term over all elements, in one pass; 0 over none."""
    total = torch.zeros(len(terms), dtype=torch.float64, device=home_of(reference.device))
    for r, m in pairs(reference, measured):
        total += torch.stack([term(r, m).sum() for term in terms])
    return tuple(total.tolist())
