"""What a normalisation may round on its way, as a function or hand-written as a module.

y = n w + b with n = (x - mean) s, s = 1 / sqrt(var + eps). Gain and offset are read off the operator itself in float64:
f(x) + f(-x) = 2b, and of rows of +-1, which have mean 0 and variance 1, f gives w + b.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from ..rounding import accumulator_unit, quantile, unit
from .arguments import HostCall
from .rules import register

__all__: list[str] = []


@dataclass(frozen=True)
class _Parts:
    """What a norm is made of, for one call; all in float64."""

    x: Tensor
    scaled: Tensor
    """n w"""
    offset: Tensor
    """b"""
    gain: Tensor
    """w"""
    inverse: Tensor
    """s, one for a row"""
    excess: Tensor
    """q = mean(x^2) / (var + eps), one for a row; 1 without a mean"""
    removes_mean: bool
    sums: float
    """lam sqrt(K)"""
    u: float
    narrow: float
    """the rounding of n to a narrow dtype before it is multiplied, in a hand-written norm"""


def _parts(call: HostCall, reference: Tensor, alarms: float) -> _Parts:
    given: Tensor = call.args[0] if call.args else call.kwargs["input"]
    x = given.double()
    length = x.shape[-1]
    offset = (reference + _of(call, -x)) / 2
    signs = torch.ones(length, dtype=torch.float64)
    signs[1::2] = -1
    signs[length - length % 2 :] = 0
    pattern = signs.expand(x.shape)
    gain = _gain(call, pattern)
    power, mean = x.square().mean(-1, keepdim=True), x.mean(-1, keepdim=True)
    removes_mean = _forgets_shift(call, x, reference)
    variance = (power - mean.square()).clamp_min(0) if removes_mean else power
    effective = (variance + _epsilon(call)).clamp_min(1e-300)
    lam = quantile(length, max(1, x.numel() // length), alarms)
    u, own = accumulator_unit(given.dtype), unit(given.dtype)
    return _Parts(
        x,
        reference - offset,
        offset,
        gain,
        effective.rsqrt(),
        power / effective if removes_mean else torch.ones_like(power),
        removes_mean,
        lam * sqrt(length),
        u,
        own if call.module is not None and own > u else 0.0,
    )


def _fit(call: HostCall, value: Tensor, reference: Tensor, alarms: float) -> tuple[Tensor, Tensor]:
    """With the row's own mean and scale: what is left are the roundings of a single element.

    u (6|n w| + 4|x s w| + 2|b|): subtraction and two products, also where mean, scale and gain are multiplied out
    first, and the offset.
    """
    parts = _parts(call, reference, alarms)
    scaled, gain = parts.scaled, parts.gain
    rest = value - parts.offset - scaled
    columns = [scaled, gain] if parts.removes_mean else [scaled]
    basis = torch.stack([column.broadcast_to(value.shape) for column in columns], -1)
    square = basis.transpose(-2, -1) @ basis
    right = basis.transpose(-2, -1) @ rest.unsqueeze(-1)
    found = torch.linalg.lstsq(square, right).solution.squeeze(-1).nan_to_num(0.0, 0.0, 0.0)
    room = parts.u * (parts.sums * parts.excess / 2 + 8)
    common = scaled * found[..., :1].clamp(-room, room)
    if parts.removes_mean:
        most = parts.u * (parts.sums + 2) * parts.x.abs().mean(-1, keepdim=True) * parts.inverse
        common = common + gain * found[..., 1:].clamp(-most, most)
    direct = (parts.x * parts.inverse * gain).abs()
    spread = parts.u * (6 * scaled.abs() + 4 * direct + 2 * parts.offset.abs()) + parts.narrow * scaled.abs()
    return reference + common, spread


@register("norm", "layer_norm", "rms_norm", "module layer_norm", "module rms_norm", fit=_fit)
def _norm(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """u [ (lam sqrt(K) q / 2 + 8) |n w| + (lam sqrt(K) + 2) mean|x| s |w| + 2|b| ], and a cast in narrow dtypes.

    Half of the variance's relative error goes into s; a fused kernel may take it as mean(x^2) - mean(x)^2, whose error
    is q times larger. The error of the mean itself is that of a sum. Hand-written norms cast n to the narrow dtype
    before they multiply by w: one more rounding, of size |n w|.
    """
    parts = _parts(call, reference, alarms)
    error = (parts.sums * parts.excess / 2 + 8) * parts.scaled.abs() + 2 * parts.offset.abs()
    if parts.removes_mean:
        size = parts.x.abs().mean(-1, keepdim=True) * parts.inverse
        error = error + (parts.sums + 2) * size * parts.gain.abs()
    return parts.u * error + parts.narrow * parts.scaled.abs()


def _of(call: HostCall, rows: Tensor) -> Tensor:
    value: Tensor = call.in_double(rows, *call.args[1:])
    return value


def _gain(call: HostCall, pattern: Tensor) -> Tensor:
    """w, from rows of +-1; where a row of odd length has its 0, w of the neighbour stands for it."""
    if pattern.shape[-1] < 2:
        return torch.ones_like(pattern)
    found = (_of(call, pattern) - _of(call, -pattern)) / 2 * pattern
    if pattern.shape[-1] % 2:
        found[..., -1] = found[..., -2]
    return found


def _forgets_shift(call: HostCall, x: Tensor, reference: Tensor) -> bool:
    """True for a layer norm: it gives the same for x + c, up to float64."""
    length = x.shape[-1]
    first, value = x.reshape(-1, length)[:1], reference.reshape(-1, length)[:1]
    shift = float(first.abs().max()) + 1
    return bool(torch.allclose(_of(call, first + shift), value, rtol=1e-6, atol=1e-9))


def _epsilon(call: HostCall) -> float:
    """The eps, where it can be read; 0 makes the bound wider, never narrower."""
    if call.module is None:
        given = call.kwargs.get("eps", call.args[-1] if len(call.args) > 3 else None)
    else:
        given = next((v for k, v in vars(call.module).items() if "eps" in k and isinstance(v, float)), None)
    return float(given) if isinstance(given, float) else 0.0
