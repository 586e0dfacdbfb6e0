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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor

from .rounding import half_ulp, unit

__all__ = ["KINDS", "name_kind"]

KINDS = ("zeroing", "clipping", "stuck", "offset", "gain", "precision loss", "spikes", "noise", "other")

_VAGUE = ("precision loss", "spikes", "other")
"""what values that come out otherwise every time look like as well; another kind is a fault that comes and goes"""
_NEARLY_ALL = 0.95
_FEW = 0.05
"""share of elements up to which a disturbance is sparse"""


@dataclass(frozen=True)
class _Seen:
    """The struck channels of a value: what came, what should have come, and which elements are off."""

    got: Tensor
    due: Tensor
    off: Tensor
    slack: Tensor
    """how far rounding on the way may take a healthy device from what is due"""
    dtype: torch.dtype

    def near(self, predicted: Tensor, *, roundings: int = 2) -> Tensor:
        """Which elements are as predicted: a fault acts on a value that was rounded, and is rounded again."""
        last = half_ulp(predicted, self.dtype)
        before = half_ulp(self.due, self.dtype) if roundings > 1 else 0.0
        same = self.got == predicted.to(self.dtype).double()
        return same | ((self.got - predicted).abs() <= self.slack + (last + before) * (1 + 2**-20))

    def explains(self, predicted: Tensor) -> bool:
        """Whether a prediction is what came, nearly everywhere, above all where something is off."""
        near = self.near(predicted)
        return _share(near[self.off]) >= _NEARLY_ALL and _share(near) >= _NEARLY_ALL


def name_kind(value: Tensor, due: Tensor, slack: Tensor | float, *, repeats: bool) -> str:
    """The kind of a fault that gave `value` where `due` should have come; `repeats`: it gives the same bits again."""
    width = value.shape[-1] if value.ndim else 1
    got, due = value.reshape(-1, width).double(), due.reshape(-1, width).double()
    room = torch.as_tensor(slack, dtype=torch.float64).broadcast_to(value.shape).reshape(-1, width)
    whole = _Seen(got, due, torch.ones_like(got, dtype=torch.bool), room, value.dtype)
    off = ~whole.near(due, roundings=1)
    if not bool(off.any()):
        return "other"
    struck = off.any(0)
    seen = _Seen(got[:, struck], due[:, struck], off[:, struck], room[:, struck], value.dtype)
    if not repeats and _is_spiky(seen):
        return "spikes"
    found = next((kind for kind, holds in _hypotheses(seen) if holds()), "other")
    return "noise" if not repeats and found in _VAGUE else found


def _hypotheses(seen: _Seen) -> Iterator[tuple[str, Callable[[], bool]]]:
    yield "zeroing", lambda: _is_zeroed(seen)
    yield "stuck", lambda: _is_stuck(seen)
    yield "clipping", lambda: _is_clipped(seen)
    yield "offset", lambda: _is_shifted(seen)
    yield "gain", lambda: _is_scaled(seen)
    yield "precision loss", lambda: any(seen.explains(cut) for cut in _fewer_bits(seen.due, seen.dtype))
    yield "spikes", lambda: _is_spiky(seen)
    yield "precision loss", lambda: _is_coarse(seen)


def _is_zeroed(seen: _Seen) -> bool:
    """Small elements are 0; in a stuck channel large ones are too."""
    zeroed = seen.off & (seen.got == 0)
    if _share(zeroed[seen.off]) < _NEARLY_ALL:
        return False
    largest = seen.due[zeroed].abs().max()
    kept = seen.due[~zeroed & (seen.got != 0)].abs()
    return bool(kept.numel()) and _share(kept >= largest * (1 - 4 * unit(seen.dtype))) >= _NEARLY_ALL


def _is_stuck(seen: _Seen) -> bool:
    """Every struck channel holds one value in all rows, where it should not."""
    alike = (seen.got == seen.got[:1]) | seen.got.isnan()
    return seen.got.shape[0] > 1 and _share(alike.all(0)) >= _NEARLY_ALL and bool((seen.due != seen.due[:1]).any())


def _is_clipped(seen: _Seen) -> bool:
    """Elements that are off all lie at one limit, and should have lain beyond it."""
    at = seen.got[seen.off].abs()
    limit = at.median()
    outside = seen.due[seen.off].abs() >= limit * (1 - 2 * unit(seen.dtype))
    return bool(limit.isfinite()) and _share(outside) >= _NEARLY_ALL and seen.explains(seen.due.clamp(-limit, limit))


def _is_shifted(seen: _Seen) -> bool:
    error = (seen.got - seen.due)[seen.off]
    return seen.explains(seen.due + error.mean()) or seen.explains(seen.due + error.median())


def _is_scaled(seen: _Seen) -> bool:
    """One factor for all: least squares, so that the largest elements, which round least, decide."""
    finite = seen.got.isfinite() & seen.due.isfinite()
    due, got = seen.due[finite], seen.got[finite]
    factor = (due * got).sum() / due.square().sum().clamp_min(1e-300)
    return bool((factor - 1).abs() > 2.0**-20) and seen.explains(seen.due * factor)


def _is_spiky(seen: _Seen) -> bool:
    """Few elements are off; or up to half of them, but by as much as the values are large."""
    share = _share(seen.off)
    error = (seen.got - seen.due)[seen.off].abs().nan_to_num(torch.inf)
    return share <= _FEW or (share <= 0.5 and bool(error.median() >= seen.due.square().mean().sqrt()))


def _is_coarse(seen: _Seen) -> bool:
    """Off by a bounded share of what is due, or of the row: as with a narrow accumulator, or a coarse table."""
    error = (seen.got - seen.due).abs()
    size = seen.due.abs().maximum(seen.due.square().mean(-1, keepdim=True).sqrt() / 4)
    return _share(error[seen.off] < 0.25 * size[seen.off]) >= _NEARLY_ALL


def _fewer_bits(due: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """The values cut off, or rounded, after ever fewer bits of their mantissa."""
    mantissa, exponent = torch.frexp(due)
    for bits in range(round(-log2(torch.finfo(dtype).eps)) - 1, 0, -1):
        shifted = torch.ldexp(mantissa, torch.tensor(bits + 1))
        for cut in (torch.trunc(shifted), torch.round(shifted)):
            yield torch.ldexp(cut, exponent - bits - 1)


def _share(holds: Tensor) -> float:
    return float(holds.double().mean()) if holds.numel() else 0.0
