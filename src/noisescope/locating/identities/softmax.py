"""Identities of softmax and of fused attention, whose weights are one.

sums to one   sum_j softmax(x)_j = 1
shifted       softmax(x + c) = softmax(x)
constant      attention(q, k, v = 1) = 1: its weights sum to one too
one key       attention over a single key = its value, up to three roundings: the only weight is p / p
doubled       attention(q, k, 2v) = 2 attention(q, k, v), bit for bit
"""

from math import sqrt

import torch
from torch import Tensor

from ...injection import sdpa_arguments
from ..host.softmax import Scores, softmax_spread
from ..rounding import accumulator_unit, alike, half_ulp, quantile, unit
from .identity import Expectation, Probe, laid_out_like, register

__all__: list[str] = []

_RENORMALISED = ("lut_exp",)


def _rows(probe: Probe) -> tuple[Scores, Tensor] | None:
    """Scores, and weights in float64 with the softmax along their last dimension."""
    if not probe.value.numel() or not probe.args or not isinstance(probe.args[0], Tensor):
        return None
    scores = Scores.of(probe.call.function, probe.args, probe.call.kwargs)
    return scores, probe.value.cpu().double().transpose(scores.dim, -1)


@register("sums to one", "softmax", exact=False, blind_to=("lut_exp", "wrong_rounding"), cost=0.0)
def _sums_to_one(probe: Probe) -> Expectation | None:
    """The error of the weights but for that of the scores, which the normaliser shares; and their last rounding,
    in which equal weights are alike."""
    found = _rows(probe)
    if found is None or bool(found[1].isnan().any()):
        return None
    scores, weights = found
    length = weights.shape[-1]
    lam = quantile(length, weights.numel(), probe.alarms)
    last = half_ulp(weights, probe.value.dtype)
    bound = 4 * scores.u * (weights * scores.distance()).sum(-1) + (lam * sqrt(length) + 10) * scores.u
    bound = bound + lam * (alike(weights) * last.square()).sum(-1).sqrt()
    total = weights.sum(-1)
    return Expectation(total, torch.ones_like(total), lambda: bound)


@register(
    "shifted",
    "softmax",
    exact=False,
    blind_to=("dead_zone", "saturation", "bias", "gain", "stuck_at", "wrong_rounding", "lut_exp"),
)
def _shifted(probe: Probe) -> Expectation | None:
    found = _rows(probe)
    if found is None:
        return None
    scores, weights = found
    x, shift = probe.args[0], 1.0
    got = probe.again((x.cpu() + shift).to(x.device), *probe.args[1:])

    def bound() -> Tensor:
        lam = quantile(weights.shape[-1], weights.numel(), probe.alarms)
        moved = torch.where(scores.rows.abs() < 1e30, unit(x.dtype) * (scores.rows + shift).abs(), 0.0)
        spread = softmax_spread(scores.rows, weights, lam, scores.u, moved + 2 * scores.cast)
        return (2 * spread + 2 * half_ulp(weights, probe.value.dtype)).transpose(scores.dim, -1)

    return Expectation(got, probe.value, bound)


@register("constant", "attention", exact=False, blind_to=("dead_zone", "bias", "wrong_rounding", "lut_exp"))
def _constant(probe: Probe) -> Expectation | None:
    given = sdpa_arguments(probe.args, probe.call.kwargs)
    if given.get("dropout_p"):
        return None
    value: Tensor = given["value"]
    ones = torch.ones(value.shape, dtype=value.dtype).to(value.device)
    got = probe.device.run(probe.call.function, **{**given, "value": ones})
    length = value.shape[-2]
    lam = quantile(length, got.numel(), probe.alarms)
    u, narrow = accumulator_unit(got.dtype), unit(got.dtype)
    size = (2 * lam * sqrt(length) + 8) * u + (lam * narrow if narrow > u else 0.0)
    bound = torch.full(got.shape, size, dtype=torch.float64)
    dead = (got == 0).all(-1, keepdim=True).cpu()  # rows in which everything is masked
    return Expectation(got, torch.where(dead, 0.0, torch.ones(got.shape)).to(got.dtype), lambda: bound)


@register("one key", "attention", exact=True, blind_to=_RENORMALISED, cost=0.1)
def _one_key(probe: Probe) -> Expectation | None:
    """(p v) (1 / p) has three roundings. p need not be 1: kernels take it as 2^(s c - m) with m = s c rounded.

    In a narrow dtype p, which is then off from 1 by u|s| and the error of exp, is cast where it multiplies v and not
    where it divides.
    """
    given = sdpa_arguments(probe.args, probe.call.kwargs)
    if given.get("dropout_p"):
        return None
    query, key, value = (given[name] for name in ("query", "key", "value"))
    only = {**given, "key": key[..., :1, :].contiguous(), "value": value[..., :1, :].contiguous()}
    only |= {"attn_mask": None, "is_causal": False}
    got = probe.device.run(probe.call.function, **only)
    first, size = value.cpu()[..., :1, :], only["key"].cpu().double().norm(dim=-1, keepdim=True)
    if given.get("enable_gqa"):
        groups = query.size(-3) // key.size(-3)
        first, size = (part.repeat_interleave(groups, dim=-3) for part in (first, size))
    expected = first.broadcast_to(got.shape)
    u, narrow = accumulator_unit(got.dtype), unit(got.dtype)
    scores = query.cpu().double().norm(dim=-1, keepdim=True) * size * (given.get("scale") or 1 / sqrt(query.size(-1)))
    roundings = 8 + 2 * scores.abs() if narrow > u else torch.full((), 4.0)
    bound = half_ulp(expected.double(), got.dtype) + u * roundings * expected.double().abs()
    return Expectation(got, expected, lambda: bound, floor=torch.finfo(torch.float32).tiny)


@register(
    "doubled",
    "attention",
    exact=True,
    blind_to=("dead_zone", "saturation", "bias", "gain", "stuck_at", "wrong_rounding"),
)
def _doubled(probe: Probe) -> Expectation | None:
    given = sdpa_arguments(probe.args, probe.call.kwargs)
    value: Tensor = given["value"]
    info = torch.finfo(value.dtype)
    if given.get("dropout_p") or float(value.abs().max()) > info.max / 4:
        return None
    got = probe.device.run(probe.call.function, **{**given, "value": laid_out_like(value.cpu() * 2, value)})
    floor = 4 * value.shape[-2] * max(torch.finfo(torch.float32).tiny, info.smallest_normal * info.eps)
    return Expectation(got, probe.value.cpu() * 2, floor=floor)
