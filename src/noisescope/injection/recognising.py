"""What a call of a torch function is, beyond its name: told from its operands and from the module that makes it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .scope import Frame

__all__ = ["is_fresh", "is_residual", "operands", "same_rows", "tensors", "uses_own_parameter"]


def tensors(args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a call is given, by position or by keyword, alone or in lists; not the one it writes to."""
    found: list[Tensor] = []
    for given in (*args, *(value for name, value in kwargs.items() if name != "out")):
        leaves = [given] if isinstance(given, Tensor) else tree_leaves(given)
        found += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return found


def is_fresh(value: Tensor, args: Any, kwargs: dict[str, Any]) -> bool:
    """True if the value has memory of its own: an einsum may return an operand, or a view of one."""
    mine = value.untyped_storage().data_ptr()
    return all(given.untyped_storage().data_ptr() != mine for given in tensors(args, kwargs))


def is_residual(frame: Frame | None, args: Any, kwargs: dict[str, Any]) -> bool:
    """Two hidden-state-shaped tensors added directly in a block's forward."""
    if frame is None or not frame.is_block or len(given := tensors(args, kwargs)) != 2:
        return False
    return all(
        operand.is_floating_point()
        and (
            frame.hidden is None
            or (operand.numel() == frame.hidden.numel() and operand.shape[-1:] == frame.hidden[-1:])
        )
        for operand in given
    )


def same_rows(operand: torch.Size, softmax: torch.Size) -> bool:
    """True if the operand holds the softmax's rows, heads merged into the batch or not."""
    return len(operand) > 2 and operand[-2:] == softmax[-2:] and operand.numel() == softmax.numel()


def uses_own_parameter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> bool:
    """True if an operand is, or is a view of, a parameter of the module itself."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters(recurse=False) if not p.is_meta}
    return bool(own) and any(operand.untyped_storage().data_ptr() in own for operand in tensors(args, kwargs))


def operands(function: Callable[..., Any] | None, args: Any, kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """The tensors that a call is computed from, parameters left out, factors before an addend."""
    given = tensors(args, kwargs)
    if getattr(function, "__name__", "").startswith(("addmm", "baddbmm")):
        given.append(given.pop(0))
    return tuple(operand for operand in given if not isinstance(operand, nn.Parameter))
