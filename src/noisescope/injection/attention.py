"""Attention in separate steps: the fused kernel's mathematics with its products and its softmax in view.

softmax(q kᵀ · scale + mask) v, softmax in float32. Rows in which everything is masked give zero, as the fused
kernel gives. Dropout draws from torch's generator as the fused kernel does, but not the same numbers.
"""

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

__all__ = ["attention_in_steps", "plain_call", "steps_difference"]

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


def steps_difference(fused: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The largest abs difference of the steps to the fused kernel, on the first row of a batch, seen by nobody."""
    args, kwargs = tree_map(partial(_first_row, of=args[0].size(0)), (args, kwargs))
    with torch.no_grad(), torch._C.DisableTorchFunction():
        difference = attention_in_steps(plain_call, *args, **kwargs) - fused(*args, **kwargs)
        return difference.abs().max()


def plain_call(_operator: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Computes a step and lets nobody see it."""
    result: Tensor = function(*args, **kwargs)
    return result


def _first_row(given: Any, *, of: int) -> Any:
    """The first row of a batched tensor; anything else as it is."""
    return given[:1] if isinstance(given, Tensor) and given.ndim > 2 and given.size(0) == of else given
