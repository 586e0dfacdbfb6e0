"""How far rounding may take a healthy device: the constants and the one theorem behind every tolerance here.

Every value is the exact result of its inputs, disturbed twice:
- by the one rounding to its dtype, at most half a unit in the last place (`half_ulp`);
- by the roundings on the way, in float32 or wider. For a sum of K terms, in any order, the error is at most
  lam sqrt(K) u sum|terms| with probability at least 1 - 2K exp(-lam^2 / 2), if the roundings are independent with mean
  zero (Higham and Mary, 2019, theorem 2.4 in its first order). `quantile` gives the lam at which all sums of a call
  together stay within their share of the false-alarm rate.
"""

from math import log, pi, sqrt

import torch
from torch import Tensor

__all__ = ["FALSE_ALARMS", "accumulator_unit", "alike", "half_ulp", "quantile", "share_of_alarms", "unit"]

FALSE_ALARMS = 1e-6
"""of a whole verdict, over all the tests that it makes"""


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def accumulator_unit(dtype: torch.dtype) -> float:
    """The unit roundoff of the arithmetic on the way: float32, or float64 for a value of that dtype."""
    return min(unit(torch.float32), unit(dtype))


def half_ulp(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """Half a unit in the last place of `dtype` at these values; below its normal numbers, that of the smallest."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(reference)
    smallest = torch.frexp(torch.tensor(info.tiny, dtype=torch.float64)).exponent
    exponent = exponent.maximum(smallest.to(exponent)) - 1
    return torch.ldexp(torch.ones_like(reference), exponent) * unit(dtype)


def alike(values: Tensor) -> Tensor:
    """How many numbers of a row, along the last dimension, are this one up to sign and a power of two.

    These round alike, so their errors add up: (sum of n errors)^2 <= n times the sum of their squares.
    """
    mantissa = torch.frexp(values.double()).mantissa.abs().contiguous()
    ordered = mantissa.sort(-1).values
    upper = torch.searchsorted(ordered, mantissa, right=True)
    return upper - torch.searchsorted(ordered, mantissa)


def share_of_alarms(number: int) -> float:
    """The false-alarm rate of the n-th test, from 1: all of them add up to `FALSE_ALARMS`, however many there are."""
    return FALSE_ALARMS * 6 / (pi * number) ** 2


def quantile(terms: int, sums: int, alarms: float) -> float:
    """The lam at which none of so many sums of so many terms leaves its bound, but with that probability."""
    return sqrt(2 * log(2 * max(terms, 1) * max(sums, 1) / alarms))
