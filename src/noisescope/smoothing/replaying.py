"""One block at a time: what a block was given in a forward pass of the model, and what it does with it under a change.

Nothing is attached to the model and nothing in it is changed: forwards are replaced for the length of a call, new
parameters are lent for the length of a call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..injection import forwards_replaced
from ..sites import Layout
from .groups import wide

__all__ = ["BlockCall", "Seen", "block_calls"]


@dataclass(frozen=True, eq=False)
class Seen:
    """One call of a module inside a block."""

    module: nn.Module
    given: Tensor
    value: Tensor


class _Reached(Exception):
    """What was to be seen has been seen: the rest of the block need not run."""


@dataclass(frozen=True, eq=False)
class BlockCall:
    """A block and what it was given."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    held: Mapping[Tensor, Tensor] = field(default_factory=dict)
    """what is lent to its parameters and buffers in place of their values"""

    @property
    def given(self) -> Tensor:
        """The hidden state that it was given."""
        found: Tensor = next(part for part in (*self.args, *self.kwargs.values()) if _is_hidden(part))
        return found

    def in_float32(self) -> "BlockCall":
        """The same call with everything in float32, or in what is wider."""
        own = (*self.block.parameters(), *self.block.buffers())
        held = {tensor: wide(tensor) for tensor in own if tensor.is_floating_point()}
        return BlockCall(self.block, _copied(self.args, wide), _copied(self.kwargs, wide), held)

    def output(self, new: Mapping[Tensor, Tensor] | None = None) -> Tensor:
        """The hidden state that it gives, with other values in some of its parameters if they are given."""
        values = {**self.held, **(new or {})}
        tensors = chain(self.block.named_parameters(), self.block.named_buffers())
        named = {name: values[own] for name, own in tensors if own in values}
        with torch.no_grad():
            found = torch.func.functional_call(self.block, named, self.args, dict(self.kwargs))
        return found if isinstance(found, Tensor) else found[0]

    def seen(self, modules: Iterable[nn.Module]) -> list[Seen]:
        """The calls of these modules that take a tensor and give one, in the order in which they ran."""
        found: list[Seen] = []

        def look(module: nn.Module) -> Callable[..., Any]:
            def replacement(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                value = forward(*args, **kwargs)
                if args and isinstance(args[0], Tensor) and isinstance(value, Tensor):
                    found.append(Seen(module, args[0], value))
                return value

            return replacement

        with torch.no_grad(), forwards_replaced({module: look(module) for module in modules}):
            self.block(*self.args, **self.kwargs)
        return found

    def reaching(self, consumer: nn.Module, producer: nn.Module, factors: Tensor | None = None) -> Tensor:
        """What the consumer is given once the producer's channels have been multiplied, tokens x channels."""
        reached: list[Tensor] = []

        def multiplied(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            value = forward(*args, **kwargs)
            return value if factors is None else value * factors.to(value)

        def stop(_forward: Callable[..., Any], given: Tensor, *_args: Any, **_kwargs: Any) -> Any:
            reached.append(given.detach().flatten(0, -2).clone())
            raise _Reached

        try:
            with torch.no_grad(), forwards_replaced({producer: multiplied, consumer: stop}):
                self.block(*self.args, **self.kwargs)
        except _Reached:
            pass
        return reached[0]


def block_calls(model: nn.Module, layout: Layout, input_ids: Tensor) -> list[BlockCall]:
    """What every block is given when the model runs on these tokens."""
    kept: dict[nn.Module, BlockCall] = {}

    def keep(block: nn.Module) -> Callable[..., Any]:
        def replacement(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if block in kept:
                raise ModelError(f"{layout.paths[block]}: runs more than once in a forward pass, expected once")
            kept[block] = BlockCall(block, _copied(args), _copied(kwargs))
            return forward(*args, **kwargs)

        return replacement

    device = next(model.parameters()).device
    with torch.no_grad(), forwards_replaced({block: keep(block) for block in layout.blocks}):
        model(input_ids=input_ids.to(device), use_cache=False)
    return list(_in_order(layout, kept))


def _in_order(layout: Layout, kept: Mapping[nn.Module, BlockCall]) -> Iterator[BlockCall]:
    for block in layout.blocks:
        if block not in kept:
            raise ModelError(f"{layout.paths[block]}: did not run in a forward pass of the model")
        yield kept[block]


def _copied(part: Any, copy: Callable[[Tensor], Tensor] = torch.clone) -> Any:
    """The same with tensors of its own, which nothing later in the forward pass writes to."""
    if isinstance(part, Tensor):
        return copy(part.detach())
    if isinstance(part, tuple) and type(part) is tuple:
        return tuple(_copied(one, copy) for one in part)
    if isinstance(part, dict) and type(part) is dict:
        return {name: _copied(value, copy) for name, value in part.items()}
    return part


def _is_hidden(part: object) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point() and part.ndim >= 2
