"""One value of the device against the host: within its rounding bound, or not, or nobody can tell."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..rounding import half_ulp, quantile
from .arguments import HostCall
from .attention import attention_in_double
from .products import check_product, products_of
from .rules import rule_of
from .shared import ratio_beyond_shared

__all__ = ["Judgement", "check_on_host", "reference_of"]


_TIES = frozenset({"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "mode"})
"""functions whose indices are any of those that have the value"""


@dataclass(frozen=True)
class Judgement:
    """What a check found: how many elements are off, and the largest error in units of its bound."""

    elements: int
    bad: int = 0
    ratio: float | None = 0.0
    """None where the value differs from the host's and no rule says by how much it may"""
    rule: str = "exact"
    flushed: int = 0
    """elements too small for a normal number that the device gave as 0"""

    @property
    def judged(self) -> bool:
        """False where nobody can tell."""
        return self.ratio is not None

    def plus(self, other: "Judgement") -> "Judgement":
        """Both together."""
        ratio = None if self.ratio is None or other.ratio is None else max(self.ratio, other.ratio)
        flushed = self.flushed + other.flushed
        return Judgement(self.elements + other.elements, self.bad + other.bad, ratio, other.rule, flushed)


def check_on_host(call: HostCall, value: Tensor, alarms: float) -> Judgement:
    """Judges a value that the device gave for this call; `alarms` is its share of the false-alarm rate.

    What is wrong may be right on a device that takes operands below the normal numbers for 0.
    """
    found = _check(call, value, alarms)
    if found.bad and (other := call.without_denormals()) is not None:
        again = _check(other, value, alarms)
        if again.judged and not again.bad:
            return replace(again, flushed=again.flushed + found.bad)
    return found


def _check(call: HostCall, value: Tensor, alarms: float) -> Judgement:
    rule = rule_of(call)
    if rule is not None and rule.name == "product" and (parts := products_of(call)) is not None:
        found = Judgement(0, rule="product")
        value = value if value.ndim > 1 else value.unsqueeze(0)
        for part in parts:
            given = value if part.rows is None else value[part.rows]
            found = found.plus(Judgement(given.numel(), *check_product(part, given, alarms), "product"))
        return found
    native = call.native()
    if not isinstance(native, Tensor) or native.shape != value.shape:
        return Judgement(value.numel(), rule="unknown", ratio=None)
    differs = (native != value) & ~(native.isnan() & value.isnan())
    if not bool(differs.any()):
        return Judgement(value.numel(), rule=rule.name if rule else "same bits")
    if not value.is_floating_point() and not value.is_complex() and call.name not in _TIES:
        return Judgement(value.numel(), int(differs.sum()), 2.0, "bits")
    if rule is None or not value.is_floating_point():
        return Judgement(value.numel(), rule="unknown", ratio=None)
    return _judge(call, value, differs, alarms)


def reference_of(call: HostCall, value: Tensor, alarms: float) -> tuple[Tensor, Tensor]:
    """What the value should have been, in float64 before its last rounding, and how far off a device like the host is.

    The second is the part of the bound that the host's own arithmetic fills, four times over: bounds must hold for the
    worst order of summation, and are too wide to tell one fault from another.
    """
    parts = products_of(call) if (rule := rule_of(call)) is not None and rule.name == "product" else None
    if parts is not None:
        due = _joined([part.in_double() for part in parts], value)
        native = _joined([torch.cat([part.value(some) for some in part.columns()], -1) for part in parts], value)
        lam = quantile(parts[0].length, value.numel(), alarms)
        spread = _joined([torch.cat([part.spread(some, lam) for some in part.columns()], -1) for part in parts], value)
        return due, _filled(native.double() - due, spread.double(), due, value.dtype)
    due = _in_double(call, value)
    if rule is None or rule.spread is None:
        return due, torch.zeros_like(due)
    native = call.native()
    return due, _filled(native.double() - due, rule.spread(call, due, alarms), due, value.dtype)


def _filled(error: Tensor, spread: Tensor, due: Tensor, dtype: torch.dtype) -> Tensor:
    beyond = (error.abs() - half_ulp(due, dtype)).clamp_min(0) / spread.clamp_min(1e-300)
    share = float(beyond.nan_to_num(0.0, 0.0, 0.0).max()) if beyond.numel() else 0.0
    return spread * min(1.0, 4 * share)


def _joined(pieces: list[Tensor], value: Tensor) -> Tensor:
    whole = torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0]
    return whole.broadcast_to(value.shape if value.ndim > 1 else (1, *value.shape)).reshape(value.shape)


def _in_double(call: HostCall, value: Tensor) -> Tensor:
    if call.name == "scaled_dot_product_attention":
        return attention_in_double(call)
    try:
        found: Any = call.in_double()
    except RuntimeError:  # not every kernel exists in float64
        found = call.native()
    return found.double() if isinstance(found, Tensor) and found.shape == value.shape else value.double()


def _judge(call: HostCall, value: Tensor, differs: Tensor, alarms: float) -> Judgement:
    rule = rule_of(call)
    assert rule is not None
    reference = _in_double(call, value)
    last = half_ulp(reference, value.dtype)
    rounded = reference.to(value.dtype)
    same = (value == rounded) | (value.isnan() & rounded.isnan())
    error = torch.where(same, 0.0, (value.double() - reference).abs().nan_to_num(inf))
    tiny = torch.finfo(value.dtype).tiny
    flushed = (value == 0) & (reference.abs() < tiny)
    if rule.spread is None:
        ratio = torch.where(differs & ~flushed, (error / last).clamp_min(1 + 1e-9), 0.0)
    else:
        ratio = torch.where(same | flushed, 0.0, error / (last + rule.spread(call, reference, alarms)))
        if rule.fit is not None and not bool((ratio > 1).any()):
            columns, spread, dim = rule.fit(call, reference, alarms)
            rest = torch.where(flushed, 0.0, value.double() - reference)
            rows = [given.transpose(dim, -1) for given in (rest, *columns, last + spread)]
            beyond = ratio_beyond_shared(rows[0], rows[1:-1], rows[-1]).transpose(dim, -1)
            ratio = ratio.maximum(torch.where(same, beyond.clamp(max=1.0), beyond))
    bad = int((ratio > 1).sum())
    worst = float(ratio.nan_to_num(0.0).max())
    return Judgement(value.numel(), bad, worst, rule.name, int((flushed & differs).sum()))
