"""The formulas: how far a run, a tensor or a distribution is from its reference. What a figure means is in `readings`.

The reference (the clean run, the trusted device) comes first. Tensors may be of any dtype and on any device, arrays and
lists are taken too, and all arithmetic is float64.

What is not defined is nan, and reads "undefined": means of nothing, 0 / 0, the correlation with a constant. A nan among
the values makes the result nan, and so do infinities that meet. A ratio to zero is infinite: the SNR of a run without
noise is +inf dB. Two shapes that differ are an `InputError`; nothing is broadcast.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import copysign, exp, inf, isnan, log10, nan, sqrt
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from .divergence import Buffers, home_of, kl_of_shifted, rows_at_once, shift_
from .streaming import Term, Values, as_tensor, pair_up, pairs, sums

__all__ = [
    "ValueComparison",
    "compare_values",
    "compute_correlation",
    "compute_cosine",
    "compute_gradient_ratio",
    "compute_kl_divergence",
    "compute_mae",
    "compute_mape",
    "compute_max_error",
    "compute_snr",
    "compute_sparsity",
    "compute_sqnr",
    "noise_tolerance_index",
    "outlier_ratios",
    "perplexity",
    "relative_degradation",
    "sensitivity_score",
    "snr_db",
]

Gradients: TypeAlias = Tensor | nn.Module | Mapping[str, Tensor | None] | Iterable[Tensor | None]
"""gradients, by name or not, or a model or parameters that have them"""

MAPE_FLOOR = 1e-8
"""added to the reference's size: a zero there makes MAPE huge instead of infinite"""
SPARSE_BELOW = 1e-6
"""a value smaller than this counts as zero"""


# --- of a run -----------------------------------------------------------------------------------------------------


def relative_degradation(clean: float, noisy: float) -> float:
    """The share of clean accuracy that noise took away, (clean - noisy) / clean; negative if noise helped."""
    return (clean - noisy) / clean if clean else nan


def sensitivity_score(degradation: float, noise_scale: float) -> float:
    """Degradation / noise scale."""
    return degradation / noise_scale if noise_scale else nan


def noise_tolerance_index(degradation: float) -> float | None:
    """1 / degradation; None, shown as "none", where noise did no harm."""
    return None if degradation <= 0 else 1 / degradation


def perplexity(nll_nats: float, tokens: int) -> float:
    """exp(negative log-likelihood per token), from its sum over tokens."""
    per_token = _quotient(nll_nats, tokens)
    return inf if per_token > 709 else exp(per_token)


def snr_db(mean_abs_signal: float, mean_abs_noise: float) -> float:
    """20 log10(mean abs signal / mean abs noise), from the two means."""
    return 20 * _log10(_quotient(mean_abs_signal, mean_abs_noise))


# --- of one tensor ------------------------------------------------------------------------------------------------


def compute_sparsity(activations: Values) -> float:
    """The share of values with abs < 1e-6."""
    values = as_tensor(activations)
    (small,) = sums(values, values, lambda a, _: (a.abs() < SPARSE_BELOW).double().masked_fill_(a.isnan(), nan))
    return _quotient(small, values.numel())


def outlier_ratios(max_abs: Values) -> Tensor:
    """The largest abs of each channel / the median of these over channels, from the former; a float64 tensor.

    A channel that reads nan stays nan and does not count for the median. Where the median is zero, because most
    channels are silent, the ratio of the others is infinite.
    """
    sizes = as_tensor(max_abs).to("cpu", torch.float64)
    known = sizes[~sizes.isnan()].numpy()
    return sizes / (float(np.median(known)) if len(known) else nan)


# --- of a tensor and its reference --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ValueComparison:
    """How far a tensor is from its reference, by all measures: MAPE misleads near zero, so SQNR is beside it."""

    mae: float
    mape: float
    sqnr_db: float
    snr_db: float
    correlation: float
    cosine: float
    max_error: float


def compare_values(reference: Values, measured: Values) -> ValueComparison:
    """All measures of a tensor against its reference, in fewer passes than one after the other."""
    r, m = pair_up(reference, measured)
    terms = (_abs_noise, _relative_noise, _abs_signal, _signal_power, _noise_power, _measured_power, _product)
    noise, relative, signal, power, noise_power, measured_power, product = sums(r, m, *terms)
    return ValueComparison(
        mae=_quotient(noise, r.numel()),
        mape=_quotient(relative, r.numel()),
        sqnr_db=10 * _log10(_quotient(power, noise_power)),
        snr_db=snr_db(signal, noise),
        correlation=compute_correlation(r, m),
        cosine=_cosine(power, measured_power, product),
        max_error=compute_max_error(r, m),
    )


def compute_mae(reference: Values, measured: Values) -> float:
    """Mean abs difference."""
    return _mean(reference, measured, _abs_noise)


def compute_mape(reference: Values, measured: Values) -> float:
    """The mean of abs difference / (abs reference + 1e-8), as a share: 0.01 is 1%.

    References near zero dominate it. Do not read it alone: `compare_values` gives the SQNR with it.
    """
    return _mean(reference, measured, _relative_noise)


def compute_max_error(reference: Values, measured: Values) -> float:
    """The largest abs difference."""
    largest = torch.tensor(-inf, dtype=torch.float64)
    for r, m in pairs(*pair_up(reference, measured)):
        largest = torch.maximum(largest, _abs_noise(r, m).amax().cpu())
    return float(largest) if largest != -inf else nan


def compute_snr(clean: Values, noisy: Values) -> float:
    """20 log10(mean abs clean / mean abs (noisy - clean)), in dB."""
    return snr_db(*sums(*pair_up(clean, noisy), _abs_signal, _abs_noise))


def compute_sqnr(reference: Values, measured: Values) -> float:
    """10 log10(sum reference^2 / sum (measured - reference)^2), in dB."""
    return 10 * _log10(_quotient(*sums(*pair_up(reference, measured), _signal_power, _noise_power)))


def compute_cosine(reference: Values, measured: Values) -> float:
    """The cosine of the angle between the two."""
    return _cosine(*sums(*pair_up(reference, measured), _signal_power, _measured_power, _product))


def compute_correlation(reference: Values, measured: Values) -> float:
    """Pearson's r over all elements.

    Deviations are taken from the first element before they are from the mean, so that a constant has exactly none.
    """
    r, m = pair_up(reference, measured)
    if not r.numel():
        return nan
    centres = [float(values.reshape(-1)[0]) for values in (r, m)]
    off = sums(r, m, lambda r, _: r - centres[0], lambda _, m: m - centres[1])
    a, b = (centre + total / r.numel() for centre, total in zip(centres, off, strict=True))
    squares = sums(r, m, lambda r, _: (r - a).square(), lambda _, m: (m - b).square(), lambda r, m: (r - a) * (m - b))
    return _cosine(*squares)


def compute_gradient_ratio(clean: Gradients, noisy: Gradients) -> float:
    """norm(noisy gradients) / norm(clean gradients), over all parameters together.

    Each side is a tensor, a dictionary or list of tensors, or a model or parameters whose `.grad` is meant; None, the
    gradient of what was not used, is left out.
    """
    first, second = _gradients(clean, "clean"), _gradients(noisy, "noisy")
    if sorted(map(_shape, first)) != sorted(map(_shape, second)):
        counts = [f"{len(found)} tensors of {sum(map(Tensor.numel, found))} values" for found in (first, second)]
        raise InputError(f"gradients: got {counts[0]} and {counts[1]} or other shapes, expected the same parameters")
    return _quotient(_norm(second), _norm(first))


@torch.no_grad()
def compute_kl_divergence(clean_logits: Values, noisy_logits: Values) -> float:
    """KL(clean || noisy) in nats, the mean over positions, from logits (... x vocabulary).

    Not from probabilities or their logarithms alone: any constant added to a position's logits is the same
    distribution. A token that both exclude by -inf counts for nothing.
    """
    clean, noisy = pair_up(clean_logits, noisy_logits)
    if clean.ndim == 0 or clean.shape[-1] == 0:
        raise InputError(f"logits: got shape {list(clean.shape)}, expected one of at least [1] (... x vocabulary)")
    vocab = clean.shape[-1]
    clean, noisy = clean.reshape(-1, vocab), noisy.reshape(-1, vocab)
    buffers, total = Buffers(len(clean), vocab, home_of(clean.device)), 0.0
    for some in zip(clean.split(rows_at_once(vocab)), noisy.split(rows_at_once(vocab)), strict=True):
        x, y, work = buffers.of(len(some[0]))
        shift_(x.copy_(some[0]))
        shift_(y.copy_(some[1]))
        total += float(kl_of_shifted(x, y, torch.exp(y, out=work).sum(-1), work).sum())
    return _quotient(total, len(clean))


# --- what they are made of ----------------------------------------------------------------------------------------


def _abs_signal(reference: Tensor, _: Tensor) -> Tensor:
    return reference.abs()


def _abs_noise(reference: Tensor, measured: Tensor) -> Tensor:
    return (measured - reference).abs_()


def _relative_noise(reference: Tensor, measured: Tensor) -> Tensor:
    return (measured - reference).abs_().div_(reference.abs().add_(MAPE_FLOOR))


def _signal_power(reference: Tensor, _: Tensor) -> Tensor:
    return reference.square()


def _measured_power(_: Tensor, measured: Tensor) -> Tensor:
    return measured.square()


def _noise_power(reference: Tensor, measured: Tensor) -> Tensor:
    return (measured - reference).square_()


def _product(reference: Tensor, measured: Tensor) -> Tensor:
    return reference * measured


def _mean(reference: Values, measured: Values, term: Term) -> float:
    r, m = pair_up(reference, measured)
    return _quotient(sums(r, m, term)[0], r.numel())


def _cosine(first_power: float, second_power: float, product: float) -> float:
    size = sqrt(first_power) * sqrt(second_power)
    return float(np.clip(product / size, -1, 1)) if size else nan


def _quotient(top: float, bottom: float) -> float:
    """A ratio of floats that divides by zero as tensors do."""
    if bottom:
        return top / bottom
    return nan if top == 0 or isnan(top) else copysign(inf, top)


def _log10(ratio: float) -> float:
    return log10(ratio) if ratio > 0 else -inf if ratio == 0 else nan


def _gradients(given: Gradients, what: str) -> list[Tensor]:
    """The gradients that are there."""
    if isinstance(given, nn.Module):
        given = given.parameters()
    listed = [given] if isinstance(given, Tensor) else list(given.values() if isinstance(given, Mapping) else given)
    found = [each.grad if isinstance(each, nn.Parameter) else each for each in listed]
    known = [as_tensor(each, what=f"{what} gradients") for each in found if each is not None]
    if not known:
        raise InputError(f"{what} gradients: got none of {len(listed)}, expected at least one; call backward() before")
    return known


def _shape(values: Tensor) -> list[int]:
    return list(values.shape)


def _norm(gradients: list[Tensor]) -> float:
    return sqrt(sum(sums(each, each, _signal_power)[0] for each in gradients))
