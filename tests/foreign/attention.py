"""Fused attention as other kernels compute it."""

from math import sqrt

import torch
from torch import Tensor

from noisescope.injection import sdpa_arguments

from .device import Arithmetic, Given, Variant, wide
from .softmax import LOG2E, fma

__all__ = ["ONLINE", "PREMULTIPLIED", "WHOLE"]

BLOCK = 5
"""keys that are looked at together"""


def _operands(given: Given) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float] | None:
    """Query, key, value, what is added to the scores, and the scale; None where dropout is asked for."""
    named = sdpa_arguments(given.call.args, given.call.kwargs)
    if named.get("dropout_p"):
        return None
    query, key, value = (wide(named[name]) for name in ("query", "key", "value"))
    if named.get("enable_gqa"):
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    mask = named.get("attn_mask")
    if named.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    scale = named.get("scale")
    return (
        query,
        key,
        value,
        None if mask is None else wide(mask),
        1 / sqrt(query.shape[-1]) if scale is None else scale,
    )


def _online() -> Arithmetic:
    """Block after block of keys, with a running maximum, in powers of two; weights are cast before they multiply."""

    def compute(given: Given) -> Tensor | None:
        if (found := _operands(given)) is None:
            return None
        query, key, value, mask, scale = found
        shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        most = torch.full((*shape, query.shape[-2], 1), -torch.inf, dtype=query.dtype)
        total, mixed = torch.zeros_like(most), torch.zeros((), dtype=query.dtype)
        for start in range(0, key.shape[-2], BLOCK):
            some = slice(start, start + BLOCK)
            scores = query @ key[..., some, :].transpose(-2, -1)
            factor = scale * LOG2E
            if mask is not None:
                scores, factor = scores * scale + mask[..., some], LOG2E
            now = torch.maximum(most, scores.amax(-1, keepdim=True))
            held = torch.where(now == -torch.inf, 0.0, now * factor)
            weights = torch.exp2(fma(scores, factor, -held))
            kept = torch.exp2(fma(most, factor, -held))
            total = total * kept + weights.sum(-1, keepdim=True)
            mixed = mixed * kept + wide(weights.to(given.value.dtype)) @ value[..., some, :]
            most = now
        return torch.where(total == 0, 0.0, mixed * (1 / total)).expand(given.value.shape)

    return compute


def _whole(premultiplied: bool) -> Arithmetic:
    """All keys at once; the weights are divided by their sum before they are cast and multiplied."""

    def compute(given: Given) -> Tensor | None:
        if (found := _operands(given)) is None:
            return None
        query, key, value, mask, scale = found
        if premultiplied:
            scores = (query * sqrt(scale)) @ (key * sqrt(scale)).transpose(-2, -1)
        else:
            scores = query @ key.transpose(-2, -1) * scale
        scores = scores if mask is None else scores + mask
        dead = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
        return (wide(weights.to(given.value.dtype)) @ value).expand(given.value.shape)

    return compute


_NAMES = ("scaled_dot_product_attention",)
ONLINE = Variant("attention online", _NAMES, _online, ("attention",))
WHOLE = Variant("attention at once", _NAMES, lambda: _whole(False), ("attention",))
PREMULTIPLIED = Variant("attention, query and key scaled first", _NAMES, lambda: _whole(True), ("attention",))
