"""How well a format holds a tensor: signal to noise, what it clips, and what it makes zero."""

from dataclasses import dataclass
from math import inf, log10

import torch
from torch import Tensor

from ...keys import Key
from .format import Format

__all__ = ["Quality", "quality", "sqnr_db"]


@dataclass(frozen=True)
class Quality:
    """What became of a tensor."""

    sqnr_db: float
    """10 log10 of mean square value over mean square error"""
    clipped: float
    """share of elements that are cut to the end of the grid"""
    zeroed: float
    """share of the elements other than 0 that became 0"""


def quality(form: Format, value: Tensor, *, axis: int = -1, key: Key | None = None) -> Quality:
    """How well the format holds the tensor.

    MX formats clip by design: their scale is a power of two, and a block's largest element may lie between the end of
    the grid and the next power.
    """
    rounded = form.round(value, axis=axis, key=key)
    wide, error = value.detach().double(), (rounded.double() - value.detach().double())
    noise = float(error.square().sum())
    signal = float(wide.square().sum())
    zeroed = (rounded == 0) & (wide != 0)
    return Quality(
        sqnr_db(signal, noise),
        form.clipped_share(value, axis=axis),
        float(zeroed.sum()) / max(1, int(torch.count_nonzero(wide))),
    )


def sqnr_db(signal: float, noise: float) -> float:
    """Of sums of squares; infinite either way where one of them is nothing or not a number of use."""
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 and noise < inf else -inf
