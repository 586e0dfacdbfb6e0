"""Identities of normalisations.

scaled     f(2x) with 4 eps = f(x), bit for bit: mean, variance and eps scale by powers of two, which never round
negated    f(x) + f(-x) = f(1, -1, ..) + f(-1, 1, ..) = 2b: what is left of the offset alone
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...injection import plain_name
from ..host.arguments import HostCall, default_epsilon
from ..host.rules import rule_of
from ..rounding import half_ulp
from .identity import Expectation, Probe, laid_out_like, register

__all__: list[str] = []

NORMS = ("layer_norm", "rms_norm")
_OF_THE_OUTPUT = ("dead_zone", "saturation", "bias", "gain", "stuck_at", "wrong_rounding")
"""faults of the value alone, which is the same in both runs"""


@register("scaled", *NORMS, exact=True, blind_to=_OF_THE_OUTPUT)
def _scaled(probe: Probe) -> Expectation | None:
    if not probe.args or not isinstance(x := probe.args[0], Tensor):
        return None
    info = torch.finfo(x.dtype)
    largest = float(x.abs().max()) if x.numel() else 0.0
    if not 0 < largest < min(info.max / 4, 2.0**60):
        return None
    twice = laid_out_like(x.cpu() * 2, x)
    if probe.call.is_module:
        with _epsilon_times_four(probe.call.module) as found:
            got = probe.again(twice, *probe.args[1:]) if found else None
    else:
        got = _of_function(probe, twice)
    if got is None:
        return None
    return Expectation(got, probe.value, floor=torch.finfo(torch.float32).tiny)


@register(
    "negated",
    *NORMS,
    exact=False,
    blind_to=("dead_zone", "saturation", "gain", "stuck_at", "wrong_rounding"),
    cost=3.0,
)
def _negated(probe: Probe) -> Expectation | None:
    if not probe.args or not isinstance(x := probe.args[0], Tensor):
        return None
    length = x.shape[-1]
    signs = torch.ones(length, dtype=x.dtype)
    signs[1::2] = -1
    if length % 2:
        signs[-1] = 0
    pattern = signs.expand(x.shape).contiguous()
    given = [x.cpu(), -x.cpu(), pattern, -pattern]
    values = [probe.value, *(probe.again(rows.to(x.device), *probe.args[1:]) for rows in given[1:])]
    there, back, up, down = (value.cpu().double() for value in values)

    def bound() -> Tensor:
        pairs = zip(given, (there, back, up, down), strict=True)
        return torch.stack([_bound(probe, rows, value) for rows, value in pairs]).sum(0)

    return Expectation(there + back, up + down, bound)


def _bound(probe: Probe, rows: Tensor, value: Tensor) -> Tensor:
    """How far a healthy device may be off for these rows."""
    call = HostCall.of(probe.call)
    call = replace(call, args=(rows, *call.args[1:]))
    rule = rule_of(call)
    assert rule is not None
    assert rule.spread is not None
    return rule.spread(call, value, probe.alarms) + half_ulp(value, probe.value.dtype)


def _of_function(probe: Probe, x: Tensor) -> Tensor | None:
    is_rms = plain_name(probe.call.function) == "rms_norm"
    names = ("input", "normalized_shape", "weight", *(() if is_rms else ("bias",)), "eps")
    given: dict[str, Any] = dict(zip(names, probe.args, strict=False)) | probe.call.kwargs
    if not set(given) <= set(names):
        return None
    eps = given.get("eps")
    if eps is None:
        eps = default_epsilon(x.dtype) if is_rms else 1e-5
    given |= {"input": x, "eps": 4 * eps}
    found: Tensor = probe.device.run(probe.call.function, *(given.get(name) for name in names))
    return found


@contextmanager
def _epsilon_times_four(module: nn.Module) -> Iterator[bool]:
    """The module's eps is four times itself inside; False if it has none that can be told."""
    names = [name for name, value in vars(module).items() if "eps" in name and isinstance(value, float)]
    if len(names) != 1:
        yield False
        return
    before = getattr(module, names[0])
    setattr(module, names[0], 4 * before)
    try:
        yield True
    finally:
        setattr(module, names[0], before)
