"""What a normalisation may round on its way, as a function or hand-written as a module."""

import torch
from torch import Tensor

from ..rounding import accumulator_unit, quantile, unit
from .arguments import HostCall
from .rules import register

__all__: list[str] = []


@register("norm", "layer_norm", "rms_norm", "module layer_norm", "module rms_norm")
def _norm(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """u [ (lam sqrt(K) q / 2 + 8) |n w| + (lam sqrt(K) + 2) mean|x| s |w| + 2|b| ], and a cast in narrow dtypes.

    y = n w + b with n = (x - mean) s, s = 1 / sqrt(var + eps). Half of the variance's relative error goes into s; a
    fused kernel may take it as mean(x^2) - mean(x)^2, whose error is q = mean(x^2) / (var + eps) times larger; q is 1
    without a mean. The error of the mean itself is that of a sum. Hand-written norms cast n to the narrow dtype
    before they multiply by w: one more rounding, of size |n w|. Gain, offset and s are read off the module itself in
    float64: f(x) + f(-x) = 2b, and of rows of +-1, which have mean 0 and variance 1, f gives w.
    """
    x: Tensor = call.args[0] if call.args else call.kwargs["input"]
    rows = x.double()
    length = rows.shape[-1]
    lam = quantile(length, max(1, rows.numel() // length), alarms)
    offset = ((reference + _of(call, -rows)) / 2).abs()
    scaled = (reference - (reference + _of(call, -rows)) / 2).abs()
    signs = torch.ones(length, dtype=torch.float64)
    signs[1::2] = -1
    if length % 2:
        signs[-1] = 0
    pattern = signs.expand(*rows.shape[:-1], length)
    gain = (_of(call, pattern) - _of(call, -pattern)).abs() / 2 if length > 1 else torch.ones_like(rows)
    power, mean = rows.square().mean(-1, keepdim=True), rows.mean(-1, keepdim=True)
    spread_rows = (power - mean.square()).clamp_min(0)
    removes_mean = _forgets_shift(call, rows, reference)
    variance = spread_rows if removes_mean else power
    effective = variance + _epsilon(call)
    u = accumulator_unit(x.dtype)
    excess = power / effective.clamp_min(1e-300) if removes_mean else torch.ones_like(power)
    error = (lam * length**0.5 * excess / 2 + 8) * scaled + 2 * offset
    if removes_mean:
        size = rows.abs().mean(-1, keepdim=True) * effective.clamp_min(1e-300).rsqrt()
        error = error + (lam * length**0.5 + 2) * size * gain
    narrow = unit(reference_dtype(call, x))
    return u * error + (narrow * scaled if call.module is not None and narrow > u else 0.0)


def reference_dtype(call: HostCall, x: Tensor) -> torch.dtype:
    """The dtype that the normalised value is cast to before it is multiplied."""
    return x.dtype


def _of(call: HostCall, rows: Tensor) -> Tensor:
    value: Tensor = call.in_double(rows, *call.args[1:])
    return value


def _forgets_shift(call: HostCall, rows: Tensor, reference: Tensor) -> bool:
    """True for a layer norm: it gives the same for x + 1, up to float64."""
    first, value = rows.reshape(-1, rows.shape[-1])[:1], reference.reshape(-1, rows.shape[-1])[:1]
    size = float(first.abs().max()) + 1
    return bool(torch.allclose(_of(call, first + size), value, rtol=1e-6, atol=1e-9))


def _epsilon(call: HostCall) -> float:
    """The eps, where it can be read; 0 makes the bound wider, never narrower."""
    if call.module is None:
        given = call.kwargs.get("eps", call.args[-1] if len(call.args) > 3 else None)
    else:
        given = next((v for k, v in vars(call.module).items() if "eps" in k and isinstance(v, float)), None)
    return float(given) if isinstance(given, float) else 0.0
