"""What errors at a layer's output may look like, as covariances of what is then seen in the logits.

With h the output of a block (token t, channel c), z independent normal numbers and J the derivative of what is seen:

    white      e[t, c] = z[t, c]              noise of one size everywhere
    relative   e[t, c] = z[t, c] h[t, c]      noise in proportion to the value, as rounding is
    gains      e[t, c] = z[c] h[t, c]         each channel too large or too small: stuck cells, wrong scales
    shifts     e[t, c] = z[c]                 each channel moved
    function   e[t, c] = f(h[t, c])           the same wrong curve for every element: gain, bias, clipping, dead zones
    element    e[t, c] = z at one element     and nothing elsewhere

The covariance of J e is F = A A^T, with A made from J; it is scaled to mean variance 1, because how large the error is
is not known. `function` takes f from lines on nine intervals of |h|; `element` is a mixture over all elements.
"""

import itertools
from dataclasses import dataclass
from math import inf, log

import torch
from torch import Tensor

__all__ = ["FAMILIES", "Spectrum", "one_element", "spectra"]

FAMILIES = ("white", "relative", "gains", "shifts", "function", "element")
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 1.0)
"""where the intervals of |h| end, as shares of the elements"""


@dataclass(frozen=True)
class Spectrum:
    """A covariance by its eigenvalues and eigenvectors, in as many blocks as there are independent parts."""

    values: Tensor
    """parts x eigenvectors"""
    vectors: Tensor
    """parts x size x eigenvectors; the covariance is 0 in all other directions"""

    @classmethod
    def of(cls, factors: Tensor) -> "Spectrum":
        """Of A A^T, from parts x size x columns."""
        if factors.shape[2] < factors.shape[1]:
            vectors, roots, _ = torch.linalg.svd(factors.double(), full_matrices=False)
            values = roots.square()
        else:
            values, vectors = torch.linalg.eigh((factors @ factors.mT).double())
            values = values.clamp(min=0)
        mean = float(values.sum()) / (factors.shape[0] * factors.shape[1])
        return cls(values / mean if mean else values, vectors.float())  # half the memory; what it rounds is below any r

    def log_likelihood(self, seen: Tensor, leftover: Tensor) -> Tensor:
        """log p(seen) up to a constant, for each size of the leftover: variance r in every direction.

        The size of the error has the prior 1 / s, over which the normal density is integrated:
        log p = -1/2 log |F + r| - n/2 log(seen^T (F + r)^-1 seen).
        """
        turned = (self.vectors.mT.double() @ seen.reshape(len(self.vectors), -1, 1)).flatten()
        missed = (seen.square().sum() - turned.square().sum()).clamp(min=0)
        variance = self.values.flatten() + leftover[:, None]
        volume = variance.log().sum(-1) + (seen.numel() - len(turned)) * leftover.log()
        fit = (turned.square() / variance).sum(-1) + missed / leftover
        return -0.5 * volume - seen.numel() / 2 * fit.log()


def spectra(jacobian: Tensor, hidden: Tensor) -> dict[str, Spectrum]:
    """Of all families but `element`, from directions x rows x tokens x channels, and the output of the block."""
    by_value = jacobian * hidden
    return {
        "white": Spectrum.of(_rows_apart(jacobian)),
        "relative": Spectrum.of(_rows_apart(by_value)),
        "gains": Spectrum.of(_rows_together(by_value.sum(2))),
        "shifts": Spectrum.of(_rows_together(jacobian.sum(2))),
        "function": Spectrum.of(_rows_together(_curves(jacobian, hidden))),
    }


def _rows_apart(factors: Tensor) -> Tensor:
    return factors.transpose(0, 1).flatten(2)


def _rows_together(factors: Tensor) -> Tensor:
    return factors.transpose(0, 1).flatten(0, 1).unsqueeze(0)


def _curves(jacobian: Tensor, hidden: Tensor) -> Tensor:
    """The answers to curves of |h|, each of length 1: directions x rows x curves."""
    size = hidden.abs()
    ends = size.flatten().sort().values[[round(share * (size.numel() - 1)) for share in SHARES]]
    curves = [torch.ones_like(hidden), hidden, size]
    for low, high in itertools.pairwise(ends):
        inside = ((size >= low) & (size <= high)).to(hidden.dtype)
        curves += [hidden * inside, hidden.sign() * inside]
    answers = torch.einsum("nrtc,krtc->nrk", jacobian, torch.stack(curves))
    return answers / answers.square().sum((0, 1)).sqrt().clamp(min=torch.finfo(answers.dtype).tiny)


def one_element(seen: Tensor, along: Tensor, norms: Tensor, leftover: Tensor) -> Tensor:
    """log p(seen) where a single element is wrong, any of them being as likely, for each size of the leftover.

    `along` is J^T seen and `norms` |J| of each element: the covariance of one is n j j^T with j of length 1.
    """
    n, there = seen.numel(), norms > 1e-6 * norms.max()
    if not there.any():
        return torch.full_like(leftover, -inf)
    matched = (along[there].double() / norms[there].double()).square()[:, None]
    missed = (seen.double().square().sum() - matched).clamp(min=0)
    fit = missed / leftover + matched / (n + leftover)
    spread = (n - 1) * leftover.log() + (n + leftover).log()
    return torch.logsumexp(-0.5 * spread - n / 2 * fit.log(), 0) - log(int(there.sum()))
