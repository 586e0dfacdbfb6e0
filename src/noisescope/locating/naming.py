"""What kind of fault it looks like, from the values that should have been and the values that came.

Each kind is a hypothesis with at most one number in it, read off the values. It predicts every element of the channels
that are off, rounded as the device rounds; the first hypothesis in the list that explains nearly all of them, and whose
changes are nearly all there, is the name. What nothing explains is `other`.

    zeroing         y = 0 where |r| is small            offset    y = r + c
    clipping        y = r clamped to +-c                gain      y = r g
    stuck           a channel has one value             spikes    few elements are off, the rest is as it should be
    precision loss  r cut or rounded to fewer bits, or off by a bounded share of itself
    noise           all elements are off, otherwise every time
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .rounding import half_ulp, unit

__all__ = ["KINDS", "name_kind"]

KINDS = ("zeroing", "clipping", "stuck", "offset", "gain", "precision loss", "spikes", "noise", "other")

_NEARLY_ALL = 0.95
_FEW = 0.05
"""share of elements up to which a disturbance is sparse"""


@dataclass(frozen=True)
class _Seen:
    """The struck channels of a value: what came, what should have come, and which elements are off."""

    got: Tensor
    wanted: Tensor
    off: Tensor
    slack: Tensor
    """how far apart two healthy values may be"""
    dtype: torch.dtype

    def explains(self, predicted: Tensor) -> bool:
        """Whether a prediction is what came, nearly everywhere, above all where something is off."""
        rounded = predicted.to(self.dtype).double()
        near = (self.got - rounded).abs() <= self.slack + half_ulp(predicted, self.dtype) * 2
        alike = near | (self.got.isnan() & rounded.isnan())
        if not bool(self.off.any()):
            return False
        return float(alike[self.off].double().mean()) >= _NEARLY_ALL and float(alike.double().mean()) >= _NEARLY_ALL


def name_kind(value: Tensor, reference: Tensor, slack: Tensor | float, *, repeats: bool) -> str:
    """The kind of a fault that gave `value` where `reference` was due; `repeats`: it gives the same bits again."""
    width = value.shape[-1] if value.ndim else 1
    got, wanted = value.reshape(-1, width).double(), reference.reshape(-1, width).double()
    room = torch.as_tensor(slack, dtype=torch.float64).broadcast_to(value.shape).reshape(-1, width)
    rounded = wanted.to(value.dtype).double()
    off = ((got - rounded).abs() > room) & (got != rounded) | (got.isnan() != rounded.isnan())
    if not bool(off.any()):  # everything is within rounding: look at all that is not the same
        off = got != rounded
    if not bool(off.any()):
        return "other"
    channels = off.any(0)
    seen = _Seen(got[:, channels], wanted[:, channels], off[:, channels], room[:, channels], value.dtype)
    if not repeats:
        return "spikes" if float(seen.off.double().mean()) <= _FEW else "noise"
    return next((kind for kind, holds in _hypotheses(seen) if holds), "other")


def _hypotheses(seen: _Seen) -> Iterator[tuple[str, bool]]:
    got, wanted, off = seen.got, seen.wanted, seen.off
    zeroed = off & (got == 0)
    threshold = wanted[zeroed].abs().max() if bool(zeroed.any()) else torch.zeros(())
    yield "stuck", _is_stuck(seen)
    yield "zeroing", seen.explains(torch.where(wanted.abs() <= threshold, 0.0, wanted))
    limit = got.abs().nan_to_num(0.0, 0.0, 0.0).max()
    yield "clipping", bool((wanted[off].abs() >= limit * (1 - 2 * unit(seen.dtype))).all()) and seen.explains(
        wanted.clamp(-limit, limit)
    )
    error = (got - wanted)[off]
    yield "offset", bool(error.isfinite().all()) and seen.explains(wanted + error.median())
    yield "gain", _is_gain(seen)
    yield "precision loss", any(seen.explains(cut) for cut in _fewer_bits(wanted, seen.dtype))
    yield "spikes", float(off.double().mean()) <= _FEW
    relative = (error / wanted[off].abs().clamp_min(1e-300)).abs()
    yield "precision loss", bool(relative.isfinite().all()) and float(relative.quantile(0.95) if relative.numel() < 2**23 else 1.0) < 0.25


def _is_stuck(seen: _Seen) -> bool:
    """Every struck channel holds one value in all rows, where it should not."""
    got = seen.got
    return got.shape[0] > 1 and bool((got == got[:1]).all()) and bool((seen.wanted != seen.wanted[:1]).any())


def _is_gain(seen: _Seen) -> bool:
    large = seen.wanted.abs() >= seen.wanted[seen.off].abs().median()
    ratios = (seen.got / seen.wanted)[large & seen.wanted.isfinite() & (seen.wanted != 0)]
    if not ratios.numel() or not bool(ratios.isfinite().all()):
        return False
    return seen.explains(seen.wanted * ratios.mean())


def _fewer_bits(wanted: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    most = round(-torch.log2(torch.tensor(torch.finfo(dtype).eps)).item())
    mantissa, exponent = torch.frexp(wanted)
    for bits in range(most - 1, 0, -1):
        shifted = torch.ldexp(mantissa, torch.tensor(bits + 1))
        for cut in (torch.trunc(shifted), torch.round(shifted)):
            yield torch.ldexp(cut, exponent - bits - 1)
