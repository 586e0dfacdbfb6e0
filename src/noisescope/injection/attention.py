"""Attention in separate steps: the fused kernel's mathematics with its products and its softmax in view.

softmax(q kᵀ · scale + mask) v, softmax in float32. Rows in which everything is masked give zero, as the fused
kernel gives. Dropout draws from torch's generator as the fused kernel does, but not the same numbers.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["attention_in_steps", "plain_call", "sdpa_arguments", "steps_difference"]

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""the arguments that may be given by position"""

Call = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Tensor]


def attention_in_steps(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `F.scaled_dot_product_attention` computes, each operator passed through `call`."""
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = (t.repeat_interleave(groups, dim=-3) for t in (key, value))
    mask, dead = _open_dead_rows(_causal_mask(query, key) if is_causal else attn_mask)
    scores = call("matmul", torch.matmul, (query, key.transpose(-2, -1)), {})
    scores = scores * (1 / sqrt(query.size(-1)) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = call("softmax", F.softmax, (scores,), {"dim": -1, "dtype": torch.float32}).to(value.dtype)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    mixed = call("matmul", torch.matmul, (weights, value), {})
    return mixed if dead is None else mixed.masked_fill(dead, 0.0)


def _causal_mask(query: Tensor, key: Tensor) -> Tensor:
    return torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()


def _open_dead_rows(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The mask with its fully masked rows opened, so that no softmax is NaN, and which rows these are."""
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        dead = ~mask.any(-1, keepdim=True)
        return mask | dead, dead
    dead = (mask == float("-inf")).all(-1, keepdim=True)
    return mask.masked_fill(dead, 0.0), dead


def sdpa_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `F.scaled_dot_product_attention`, all by name."""
    return dict(zip(_SDPA, args, strict=False)) | kwargs


def steps_difference(fused: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """The largest abs difference of the steps to the fused kernel, on the first row of a batch, seen by nobody."""
    query: Tensor = given["query"]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if not query.numel():
            return query.new_zeros(())
        first = {name: _first_row(value, like=query) for name, value in given.items()}
        return (attention_in_steps(plain_call, **first) - fused(**first)).abs().max()


def plain_call(_operator: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Computes a step and lets nobody see it."""
    result: Tensor = function(*args, **kwargs)
    return result


def _first_row(given: Any, *, like: Tensor) -> Any:
    """The first row of a tensor that has a batch before its heads; anything else as it is."""
    return given[:1] if isinstance(given, Tensor) and given.ndim == like.ndim > 3 else given
