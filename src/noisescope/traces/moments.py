"""Mean and spread of numbers that are seen in parts.

Sums of up to a million elements are taken in float32, by torch and BLAS, to about 1e-5, and those of more in float64;
where a variance would drown in its mean, or squares leave the range, all is float64 and around the mean.
"""

from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import Tensor

__all__ = ["Moments", "moments_of"]


@dataclass(frozen=True)
class Moments:
    """Number, mean and sum of squares around the mean, of numbers that may be seen in parts."""

    count: int = 0
    mean: float = 0.0
    around: float = 0.0

    @property
    def std(self) -> float:
        """Of the population."""
        return sqrt(max(self.around, 0.0) / self.count) if self.count else 0.0

    @property
    def norm(self) -> float:
        """Root of the sum of squares around zero."""
        return sqrt(max(self.around + self.count * self.mean * self.mean, 0.0))

    def joined(self, other: "Moments") -> "Moments":
        """Of both parts together."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        return Moments(count, mean, self.around + other.around + apart * apart * self.count * other.count / count)

    def without_zeros(self, zeros: int) -> "Moments":
        """Of the same numbers without so many zeros."""
        if not zeros or zeros >= self.count:
            return self if not zeros else Moments()
        count = self.count - zeros
        mean = self.mean * self.count / count
        return Moments(count, mean, self.around + self.count * self.mean**2 - count * mean**2)


def moments_of(chunk: Tensor, wide: Tensor) -> Moments:
    """Of some elements, which are given in float32 too."""
    n = chunk.numel()
    if chunk.dtype != torch.float64:
        total, squares = float(wide.sum()), float(wide.dot(wide))
        around = squares - total * total / n
        if isfinite(squares) and around > 0.01 * squares and squares > 1e-30:
            return Moments(n, total / n, around)
    double = chunk.double()
    mean = float(double.mean())
    return Moments(n, mean, float((double - mean).square().sum()))
