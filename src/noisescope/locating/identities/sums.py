"""Identities of additions and multiplications of elements: residual sums, rotary embeddings, gates. All bit for bit.

twin      a + b = a - (-b), by another operator of the device: IEEE 754 rounds both once
known     a + 0 = a, a * 1 = a
turned    cos^2 + sin^2 = 1, the rotary table, up to rounding
"""

import torch
from torch import Tensor

from ...injection import plain_name
from ...injection.calls import arguments_kept
from .identity import Expectation, Probe, register

__all__: list[str] = []


def _two(probe: Probe) -> tuple[Tensor, Tensor | float] | None:
    if len(probe.args) != 2 or probe.call.kwargs or not isinstance(probe.args[0], Tensor):
        return None
    first, second = probe.args
    if not isinstance(second, (Tensor, int, float)) or isinstance(second, bool):
        return None
    return (first, second) if first.is_floating_point() else None


@register("twin", "residual", "add", exact=True)
def _twin(probe: Probe) -> Expectation | None:
    if (two := _two(probe)) is None:
        return None
    first, second = two
    minus = (-second.cpu()).to(second.device) if isinstance(second, Tensor) else -second
    return Expectation(probe.value, probe.other(torch.sub, first, minus))


@register("known", "residual", "add", "mul", exact=True, blind_to=("bit_flip",))
def _known(probe: Probe) -> Expectation | None:
    if (two := _two(probe)) is None:
        return None
    first, second = two
    neutral = 1.0 if plain_name(probe.call.function) == "mul" else 0.0
    other = torch.full_like(second, neutral) if isinstance(second, Tensor) else neutral
    args, _ = arguments_kept(probe.call.function, (first, other), {})
    got = probe.again(*args)
    return Expectation(got, first.to(got.dtype).broadcast_to(got.shape), floor=torch.finfo(got.dtype).tiny)


@register("turned", "cos", "sin", exact=False, blind_to=("lut_exp",))
def _turned(probe: Probe) -> Expectation | None:
    if not probe.args or not isinstance(x := probe.args[0], Tensor):
        return None
    other = torch.sin if plain_name(probe.call.function) == "cos" else torch.cos
    here, there = probe.value.cpu().double(), other(x.cpu().double())  # the device's own may be the broken one
    u = torch.finfo(probe.value.dtype).eps
    bound = u * (4 + x.cpu().double().abs() * torch.finfo(torch.float32).eps / u)
    return Expectation(here.square() + there.square(), torch.ones_like(here), lambda: bound)
