"""Errors that all elements of a row share: one scale, one mean, one normaliser.

A device may have any scale and mean within their own bounds, so the question for a row is whether there are numbers c
with which every element is within its bound: |rest_i - sum_k c_k column_ik| <= t bound_i with t <= 1. The least t is a
Chebyshev fit; Lawson's iteration closes in on it from both sides. Every fit it makes is a t that does. Every weighted
sum of squares, sqrt(min_c sum w (rest / bound)^2) with weights that sum to 1, is a t that no c can go below, because
a mean is no larger than a maximum. Only the second is evidence of a fault.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["ratio_beyond_shared"]

STEPS = 50
"""of the iteration; a row that is undecided then is not accused"""


def ratio_beyond_shared(rest: Tensor, columns: Sequence[Tensor], bound: Tensor) -> Tensor:
    """Errors in units of their bounds with the best c for each row, along the last dimension.

    Of a row that no c brings within its bounds, the largest is what is proven.
    """
    width = rest.shape[-1]
    scaled = (rest / bound).nan_to_num(0.0, 0.0, 0.0).reshape(-1, width)
    basis = torch.stack([(column / bound).expand(rest.shape).reshape(-1, width) for column in columns], -1)
    found = scaled.abs()
    unclear = (found.amax(-1) > 1).nonzero().squeeze(-1)
    if len(unclear):
        found[unclear] = _fitted(scaled[unclear], basis[unclear].nan_to_num(0.0, 0.0, 0.0))
    return found.reshape(rest.shape)


def _fitted(rest: Tensor, basis: Tensor) -> Tensor:
    size = basis.norm(dim=-2, keepdim=True)
    basis = basis / torch.where(size > 0, size, 1.0)
    weights = torch.full_like(rest, 1 / rest.shape[-1])
    best = rest.abs()
    proven = torch.zeros_like(best[:, 0])
    open_rows = torch.arange(len(rest))
    for _ in range(STEPS):
        given, columns, share = rest[open_rows], basis[open_rows], weights[open_rows]
        root = share.sqrt().unsqueeze(-1)
        c = torch.linalg.lstsq(columns * root, given.unsqueeze(-1) * root, driver="gelsd").solution
        left = (given - (columns @ c).squeeze(-1)).abs()
        proven[open_rows] = proven[open_rows].maximum((share * left.square()).sum(-1).sqrt())
        better = left.amax(-1) < best[open_rows].amax(-1)
        best[open_rows] = torch.where(better.unsqueeze(-1), left, best[open_rows])
        share = share * left + 1e-9 * left.amax(-1, keepdim=True) / rest.shape[-1]
        weights[open_rows] = share / share.sum(-1, keepdim=True)
        open_rows = open_rows[(best[open_rows].amax(-1) > 1) & (proven[open_rows] <= 1)]
        if not len(open_rows):
            break
    most = best.amax(-1)
    return best * torch.where(most <= 1, 1.0, proven / most).unsqueeze(-1)
