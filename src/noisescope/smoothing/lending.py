"""Folds that a model computes with before they are written: what they do is known while it is still what it was.

The folded weights of a block are made when the block runs and let go behind it, so that there is never more than one
block of them beside the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..injection import forwards_replaced
from ..keys import Key
from .groups import Group, wide, write

__all__ = ["Fold", "fold", "lent", "rounded_by"]


@dataclass(frozen=True, eq=False)
class Fold:
    """A group and what the channels of its producer are divided by."""

    group: Group
    scales: Tensor


def fold(folds: Sequence[Fold]) -> None:
    """Writes the folds, block by block: one that is interrupted leaves each block folded whole or not at all."""
    for own in _by_layer(folds).values():
        write(_folded(own))


def rounded_by(folds: Sequence[Fold]) -> list[Tensor]:
    """The parameters that do not hold exactly what they should once the folds are done."""
    return [parameter for own in _by_layer(folds).values() for parameter in _rounded(own)]


@contextmanager
def lent(blocks: Sequence[nn.Module], folds: Sequence[Fold], *, nudged: Sequence[Tensor] = ()) -> Iterator[None]:
    """The blocks compute with the folds until the `with` ends, some of their parameters rounded once more."""
    numbers = {parameter: number for number, parameter in enumerate(nudged)}

    def folded(own: Sequence[Fold]) -> Callable[..., Any]:
        def replacement(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            new = _folded(own)
            new |= {own: _nudged(value, numbers[own]) for own, value in new.items() if own in numbers}
            with _swapped(new):
                return forward(*args, **kwargs)

        return replacement

    with forwards_replaced({blocks[layer]: folded(own) for layer, own in _by_layer(folds).items()}):
        yield


@contextmanager
def _swapped(new: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """The parameters have these values until the `with` ends; nothing is written to the memory of the old ones."""
    old = {parameter: parameter.data for parameter in new}
    try:
        for parameter, value in new.items():
            parameter.data = value
        yield
    finally:
        for parameter, value in old.items():
            parameter.data = value


def _by_layer(folds: Sequence[Fold]) -> dict[int, list[Fold]]:
    found: dict[int, list[Fold]] = {}
    for one in folds:
        found.setdefault(one.group.layer, []).append(one)
    return found


def _folded(folds: Sequence[Fold]) -> dict[Tensor, Tensor]:
    """The parameters of a block once all its folds are done, one after the other: a linear may be in two."""
    new: dict[Tensor, Tensor] = {}
    for one in folds:
        new |= one.group.folded(one.scales, new)
    return new


def _rounded(folds: Sequence[Fold]) -> list[Tensor]:
    new: dict[Tensor, Tensor] = {}
    found: dict[Tensor, None] = {}
    for one in folds:
        exact = one.group.folded(one.scales, {own: new.get(own, own).double() for own in one.group.parameters})
        new |= one.group.folded(one.scales, new)
        found |= {own: None for own, value in exact.items() if not torch.equal(new[own].double(), value)}
    return list(found)


def _nudged(value: Tensor, number: int) -> Tensor:
    """A rounding more or less than it is, by chance."""
    key = Key(number, "nudged")
    signs = torch.randint(0, 2, value.shape, generator=key.generator()).to(value.device).mul_(2).sub_(1)
    return (wide(value) * (1 + signs * torch.finfo(value.dtype).eps / 2)).to(value.dtype)
