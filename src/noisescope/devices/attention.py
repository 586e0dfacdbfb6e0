"""A device that computes attention block after block, as flash kernels do."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..faults.wide import widened
from ..injection import sdpa_arguments
from .functions import LOG2E, fma
from .given import Given
from .rows import SDPA, Device, register

__all__ = ["BLOCK", "online", "operands"]

BLOCK = 16
"""keys that are looked at together"""


def operands(given: Given) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float] | None:
    """Query, key, value, what is added to the scores, and the scale; None where dropout is asked for."""
    named = sdpa_arguments(given.call.args, given.call.kwargs)
    if named.get("dropout_p"):
        return None
    query, key, value = (widened(named[name]) for name in ("query", "key", "value"))
    if named.get("enable_gqa"):
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scale = named.get("scale")
    return query, key, value, _mask(named, query, key), 1 / sqrt(query.shape[-1]) if scale is None else scale


def _mask(named: dict[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    mask: Tensor | None = named.get("attn_mask")
    if named.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, -torch.inf)
    found: Tensor | None = widened(mask)
    return found


def online(given: Given, block: int = BLOCK) -> Tensor | None:
    """Block after block of keys, with a running maximum, in powers of two; weights are cast before they multiply."""
    if (found := operands(given)) is None:
        return None
    query, key, value, mask, scale = found
    shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    most = query.new_full((*shape, query.shape[-2], 1), -torch.inf)
    total, mixed = torch.zeros_like(most), query.new_zeros(())
    for start in range(0, key.shape[-2], block):
        some = slice(start, start + block)
        scores = query @ key[..., some, :].transpose(-2, -1)
        factor = scale * LOG2E
        if mask is not None:
            scores, factor = scores * scale + mask[..., some], LOG2E
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        held = torch.where(now == -torch.inf, 0.0, now * factor)
        weights = torch.exp2(fma(scores, factor, -held))
        kept = torch.exp2(fma(most, factor, -held))
        total = total * kept + weights.sum(-1, keepdim=True)
        mixed = mixed * kept + widened(weights.to(given.value.dtype)) @ value[..., some, :]
        most = now
    return torch.where(total == 0, 0.0, mixed * (1 / total)).expand(given.value.shape)


register(
    Device(
        "online_attention",
        f"Fused attention takes {BLOCK} keys at a time with a running maximum, in powers of two, as flash kernels do.",
        (SDPA,),
        lambda _dice: online,
        honest=True,
    )
)
