"""Identities of activations: silu(x) - silu(-x) = x, and the same for gelu, up to rounding."""

import torch
from torch import Tensor

from ..host.arguments import HostCall
from ..host.rules import rule_of
from ..rounding import half_ulp
from .identity import Expectation, Probe, register

__all__: list[str] = []


@register("reflected", "silu", "gelu", exact=False, blind_to=("lut_exp",))
def _reflected(probe: Probe) -> Expectation | None:
    if not probe.args or not isinstance(x := probe.args[0], Tensor) or probe.call.in_place:
        return None
    negative = (-x.cpu()).to(x.device)
    there, back = probe.value.cpu().double(), probe.again(negative, *probe.args[1:]).cpu().double()

    def bound() -> Tensor:
        call = HostCall.of(probe.call)
        rule = rule_of(call)
        assert rule is not None
        assert rule.spread is not None
        both = [rule.spread(call, v, probe.alarms) + half_ulp(v, probe.value.dtype) for v in (there, back)]
        return torch.stack(both).sum(0)

    return Expectation(there - back, x.cpu().double(), bound)
