"""What a normalisation may round on its way, as a function or hand-written as a module.

y = n w + b with n = (x - mean) s, s = 1 / sqrt(var + eps). Gain and offset are read off the operator itself in float64:
f(x) + f(-x) = 2b, and of rows of +-1, which have mean 0 and variance 1, f gives w + b.
"""

from dataclasses import dataclass, replace
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
    grown: Tensor
    """1 / sqrt(1 - lam sqrt(K) u q): how much s may grow by the error of the variance, one for a row"""
    removes_mean: bool
    sums: float
    """lam sqrt(K)"""
    u: float
    narrow: float
    """the rounding of n to a narrow dtype before it is multiplied, in a hand-written norm"""

    def underflow(self) -> Tensor:
        """What is lost where x, w, s w or n w is too small to be a normal number: it may be taken for 0."""
        lost = 2 + self.x.abs() + (self.inverse * self.gain).abs() + self.inverse * self.x.abs()
        return torch.finfo(torch.float32).tiny * lost


def _parts(call: HostCall, reference: Tensor, alarms: float) -> _Parts:
    given = next(given for given in (*call.args, *call.kwargs.values()) if isinstance(given, Tensor))
    x = given.double()
    length = x.shape[-1]
    offset = (reference + _of(call, -x)) / 2
    power, mean = x.square().mean(-1, keepdim=True), x.mean(-1, keepdim=True)
    removes_mean = _forgets_shift(call, x, reference)
    variance = (power - mean.square()).clamp_min(0) if removes_mean else power
    effective = (variance + _epsilon(call)).clamp_min(1e-300)
    doubtful = power + 2 * mean.abs() * x.abs().mean(-1, keepdim=True) if removes_mean else power
    lam = quantile(length, max(1, x.numel() // length), alarms)
    u, own = accumulator_unit(given.dtype), unit(given.dtype)
    kept = (1 - lam * sqrt(length) * u * doubtful / effective).clamp_min(1e-300)
    return _Parts(
        x,
        reference - offset,
        offset,
        _gain(call, x),
        effective.rsqrt(),
        kept.rsqrt(),
        removes_mean,
        lam * sqrt(length),
        u,
        own if call.module is not None and own > u else 0.0,
    )


def _fit(call: HostCall, reference: Tensor, alarms: float) -> tuple[list[Tensor], Tensor, int]:
    """With the row's own mean and scale: what is left are the roundings of a single element.

    u (6|n w| + 4|x s w| + 2|b|): subtraction and two products, also where mean, scale and gain are multiplied out
    first, and the offset; all larger by what the scale may have grown.
    """
    parts = _parts(call, reference, alarms)
    direct = (parts.x * parts.inverse * parts.gain).abs()
    spread = parts.u * (parts.grown * (6 * parts.scaled.abs() + 4 * direct) + 2 * parts.offset.abs())
    spread = spread + parts.narrow * parts.scaled.abs() + parts.underflow()
    return [parts.scaled, parts.gain] if parts.removes_mean else [parts.scaled], spread, -1


@register("norm", "layer_norm", "rms_norm", "module layer_norm", "module rms_norm", fit=_fit)
def _norm(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """(g - 1 + 8 u g)|n w| + u [(lam sqrt(K) + 2) g mean|x| s |w| + 4 g |x s w| + 2|b|], and a cast in narrow dtypes.

    g = 1 / sqrt(1 - lam sqrt(K) u q), about 1 + lam sqrt(K) u q / 2: s with the variance's error in it; q = 1 without a
    mean. A fused kernel may take the variance as mean(x^2) - mean(x)^2. The first is off by lam sqrt(K) u mean(x^2),
    the second by 2|mean| times its sum's error, so q = (mean(x^2) + 2|mean| mean|x|) / (var + eps). Where that error
    reaches the variance itself, any result is as good as another.

    The error of the mean itself is that of a sum; the rest is as in `_fit`. Hand-written norms cast n to the narrow
    dtype before they multiply by w: one more rounding, of size |n w|.
    """
    parts = _parts(call, reference, alarms)
    error = (parts.grown - 1) * parts.scaled.abs() + parts.u * (
        8 * parts.grown * parts.scaled.abs() + 2 * parts.offset.abs()
    )
    if parts.removes_mean:
        size = parts.x.abs().mean(-1, keepdim=True) * parts.inverse
        direct = (parts.x * parts.inverse).abs()
        error = error + parts.u * parts.grown * ((parts.sums + 2) * size + 4 * direct) * parts.gain.abs()
    return error + parts.narrow * parts.scaled.abs() + parts.underflow()


def _of(call: HostCall, rows: Tensor) -> Tensor:
    if not call.args:
        first = next(name for name, given in call.kwargs.items() if isinstance(given, Tensor))
        call = replace(call, kwargs={**call.kwargs, first: rows})
    value: Tensor = call.in_double(rows, *call.args[1:]) if call.args else call.in_double()
    return value


def _gain(call: HostCall, x: Tensor) -> Tensor:
    """w up to a factor, from rows of +-1; a row of odd length has a 0, which is put at either end."""
    length = x.shape[-1]
    if length < 2:
        return torch.ones_like(x)
    signs = torch.ones(length, dtype=torch.float64)
    signs[1::2] = -1
    signs[length - length % 2 :] = 0
    found = torch.zeros_like(x)
    for pattern in (signs, signs.roll(1)) if length % 2 else (signs,):
        rows = pattern.expand(x.shape)
        found = torch.where(rows != 0, (_of(call, rows) - _of(call, -rows)) / 2 * rows, found)
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
