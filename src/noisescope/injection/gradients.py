"""The autograd functions of injection: values and gradients that differ from what the other direction sees."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["add_unseen", "take_value", "visit_gradient"]


class _AddUnseen(torch.autograd.Function):
    """Disturbs a copy; the gradient passes as if nothing had happened.

    It saves a tensor of no elements, so that checkpointing, which compares what is saved, raises if it recomputes
    this value undisturbed: after the injection has ended, or in a function that belongs to no module.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, disturb_: Callable[[Tensor], None]) -> Tensor:
        out = value.clone()
        disturb_(out)
        ctx.save_for_backward(out.new_empty(0))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _VisitGradient(torch.autograd.Function):
    """The identity; in the backward pass the gradient is shown to `visit` and replaced by its answer."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, visit: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.visit = visit
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.visit(grad), None


class _TakeValue(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, graph: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def add_unseen(value: Tensor, disturb_: Callable[[Tensor], None]) -> Tensor:
    """The disturbed value, with the gradient of the undisturbed one: a device's error has no derivative."""
    out: Tensor = _AddUnseen.apply(value, disturb_)
    return out


def visit_gradient(value: Tensor, visit: Callable[[Tensor], Tensor]) -> Tensor:
    """The same value; the gradient that its consumer makes for it goes through `visit`."""
    out: Tensor = _VisitGradient.apply(value, visit)
    return out


def take_value(graph: Tensor, value: Tensor) -> Tensor:
    """`value`, bit for bit, whose gradient flows into `graph`: two ways to compute one thing."""
    out: Tensor = _TakeValue.apply(graph, value.detach())
    return out
