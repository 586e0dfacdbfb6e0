"""A group: what can be scaled down channel by channel, the linears that can take the scale up, and how it is folded.

    producer                          consumers
    input_layernorm                -> q_proj k_proj v_proj
    v_proj                         -> o_proj                  several heads may share a channel of v_proj
    up_proj                        -> down_proj

Channel j of the producer is divided by s_j, and what the consumers multiply it with is multiplied by s_j: the same
function. `folded` gives the new parameters and writes nothing, so that a fold can be tried before it is done.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..sites import matrix

__all__ = ["Group", "used_once", "wide", "write"]


@dataclass(frozen=True, eq=False)
class Group:
    """A producer, its consumers, and which channel goes where."""

    layer: int
    producer: nn.Module
    consumers: tuple[nn.Module, ...]
    names: tuple[str, ...]
    """paths within the block: of the producer, and of the consumers"""
    channels: Tensor
    """of each input channel of the consumers: the producer's channel it is proportional to, -1 where there is none"""
    width: int
    """channels of the producer"""
    offset: float | None = None
    """of a norm: what it adds to its weight before it multiplies, 1 in Gemma; None for a linear"""

    @property
    def name(self) -> str:
        """In words: "input_layernorm -> q_proj k_proj v_proj"."""
        producer, *consumers = self.names
        return f"{producer} -> {' '.join(name.rpartition('.')[2] for name in consumers)}"

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those that a fold changes."""
        bias = self.producer._parameters.get("bias")
        found = (_weight(self.producer), bias, *map(_weight, self.consumers))
        return tuple(parameter for parameter in found if parameter is not None)

    @property
    def reached(self) -> Tensor:
        """Of each channel of the producer, whether an input channel of the consumers is proportional to it."""
        found = torch.zeros(self.width, dtype=torch.bool)
        found[self.channels[self.channels >= 0]] = True
        return found

    def spread(self, scales: Tensor) -> Tensor:
        """The producer's scales, as the consumers' input channels have them."""
        return torch.where(self.channels >= 0, scales[self.channels.clamp(min=0)], 1.0)

    def gathered(self, largest: Tensor) -> Tensor:
        """What is largest over the input channels that share a channel of the producer; 0 for one that has none."""
        known = self.channels >= 0
        start = torch.zeros(self.width, dtype=largest.dtype)
        return start.scatter_reduce(0, self.channels[known], largest[known], reduce="amax")

    def folded(self, scales: Tensor, held: Mapping[Tensor, Tensor] | None = None) -> dict[Tensor, Tensor]:
        """The new value of each parameter, with channel j of the producer divided by scales[j].

        Channels that reach no consumer stay as they are: they may be queries and keys beside the values.
        Computed in float32, or what is wider, and rounded once to the dtype of the value that is folded: the
        parameter's own, or the one that is held for it.
        """
        held = held or {}
        weight, bias = _weight(self.producer), self.producer._parameters.get("bias")
        scales = torch.where(self.reached, scales, 1.0)
        down = scales.to(weight.device)
        if self.offset is None:
            rows = down.unsqueeze(1) if matrix(self.producer) is weight else down
            found: dict[Tensor, Tensor] = {weight: wide(held.get(weight, weight)) / rows}
        else:
            found = {weight: (wide(held.get(weight, weight)) + self.offset) / down - self.offset}
        if bias is not None:
            found[bias] = wide(held.get(bias, bias)) / down
        for consumer in self.consumers:
            into = _weight(consumer)
            up = self.spread(scales).to(into.device)
            found[into] = wide(held.get(into, into)) * (up if matrix(consumer) is into else up.unsqueeze(1))
        return {own: value.to(held.get(own, own).dtype) for own, value in found.items()}


def write(new: Mapping[Tensor, Tensor]) -> None:
    """The parameters hold these values from now on; all of them, or, if this is interrupted, none."""
    old = {parameter: parameter.detach().clone() for parameter in new}
    with torch.no_grad():
        try:
            for parameter, value in new.items():
                parameter.copy_(value)
        except BaseException:
            for parameter, value in old.items():
                parameter.copy_(value)
            raise


def wide(tensor: Tensor) -> Tensor:
    """The same in float32, or in what is wider; whole numbers stay what they are."""
    if not tensor.is_floating_point():
        return tensor.detach()
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def used_once(model: nn.Module) -> set[nn.Parameter]:
    """The parameters that only one module has: what is tied to another must not be scaled."""
    seen: dict[nn.Parameter, int] = {}
    for module in model.modules():
        for parameter in _own(module):
            seen[parameter] = seen.get(parameter, 0) + 1
    return {parameter for parameter, times in seen.items() if times == 1}


def _own(module: nn.Module) -> Iterable[nn.Parameter]:
    return (parameter for parameter in module._parameters.values() if parameter is not None)


def _weight(module: nn.Module) -> nn.Parameter:
    found = module._parameters["weight"]
    assert found is not None, "groups are made of modules with a weight"
    return found
