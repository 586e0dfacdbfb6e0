"""Spearman's and Kendall's correlation with bootstrap intervals, all resamples in a few matrix products.

With S_ij = sign(x_i - x_j), T likewise for y, and w_i how often a resample holds item i, the centred mid-ranks in that
resample are r_i = sum_j w_j S_ij / 2 (their weighted mean is zero because S is antisymmetric), so that

    Spearman = sum_i w_i r_i q_i / sqrt(sum_i w_i r_i^2  sum_i w_i q_i^2)
    Kendall's tau-b = sum_ij w_i w_j S_ij T_ij / sqrt(sum_ij w_i w_j S_ij^2  sum_ij w_i w_j T_ij^2)

with ties as the textbooks treat them. Weights of one give the correlation itself.
"""

from math import nan
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..keys import Key
from .intervals import LEVEL, Estimate

__all__ = ["RESAMPLES", "rank_correlations", "spearman"]

RESAMPLES = 2000
_Array: TypeAlias = NDArray[np.float64]


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's correlation alone; nan where `rank_correlations` gives nan."""
    signs, others = _paired(x, y)
    return nan if len(signs) < 3 else float(_spearman(signs, others, np.ones((1, len(signs))))[0])


def rank_correlations(x: ArrayLike, y: ArrayLike, *, key: Key, resamples: int = RESAMPLES) -> tuple[Estimate, Estimate]:
    """Spearman's and Kendall's correlation (tau-b) with 95% percentile intervals over resampled items.

    Items with nan on either side are left out. With fewer than three items, or one side constant, both are nan. For 8
    to 30 normal items the interval held the true value in 94% to 99% of 400 simulations. It does not see what cannot be
    resampled: for a perfect ranking it is a point.
    """
    signs, others = _paired(x, y)
    n = len(signs)
    if n < 3:
        return (_estimate(np.array([nan]), n),) * 2
    drawn = np.random.default_rng(key.digest).multinomial(n, np.full(n, 1 / n), size=resamples)
    weights = np.vstack([np.ones(n), drawn])
    return _estimate(_spearman(signs, others, weights), n), _estimate(_kendall(signs, others, weights), n)


def _paired(x: ArrayLike, y: ArrayLike) -> tuple[_Array, _Array]:
    """Sign matrices of the items that have a number on both sides."""
    left, right = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    known = ~(np.isnan(left) | np.isnan(right))
    return _signs(left[known]), _signs(right[known])


def _signs(values: _Array) -> _Array:
    above = values[:, None] > values[None, :]
    return above.astype(np.float64) - above.T


def _spearman(signs: _Array, others: _Array, weights: _Array) -> _Array:
    ranks, beside = weights @ signs.T, weights @ others.T
    return _quotient(*((weights * product).sum(1) for product in (ranks * beside, ranks**2, beside**2)))


def _kendall(signs: _Array, others: _Array, weights: _Array) -> _Array:
    return _quotient(*(((weights @ product) * weights).sum(1) for product in (signs * others, signs**2, others**2)))


def _quotient(together: _Array, one: _Array, other: _Array) -> _Array:
    """Covariance over the root of the variances; nan where a side is constant."""
    spread = np.sqrt(one * other)
    return np.divide(together, spread, out=np.full_like(together, nan), where=spread > 0)


def _estimate(values: _Array, n: int) -> Estimate:
    """The first value, with the interval and the spread of the others; resamples that are constant are left out."""
    found, again = float(values[0]), values[1:][~np.isnan(values[1:])]
    if np.isnan(found) or len(again) < 2:
        return Estimate(nan, nan, nan, nan, n)
    low, high = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(found, float(low), float(high), float(again.std(ddof=1)), n)
