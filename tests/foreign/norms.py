"""Norms as fused kernels: variance by another formula, products multiplied out, one cast at the end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from noisescope.devices.functions import ulps_off

from .device import Arithmetic, Given, Variant, wide

__all__ = ["NORMS"]

_NAMES = ("layer_norm", "rms_norm", "module layer_norm", "module rms_norm")


@dataclass(frozen=True, eq=False)
class Norm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, all wide."""

    x: Tensor
    removes_mean: bool
    eps: float
    weight: Tensor | None
    bias: Tensor | None


Form: TypeAlias = Callable[[Norm], Tensor]


def _norm(given: Given) -> Norm | None:
    if given.name.startswith("module"):
        return _of_module(given)
    means = given.name == "layer_norm"
    names = ("input", "normalized_shape", "weight", "bias", "eps") if means else (
        "input", "normalized_shape", "weight", "eps")  # fmt: skip
    named = given.named(*names)
    if len(named["normalized_shape"]) != 1:
        return None
    eps = named.get("eps")
    if eps is None:
        eps = 1e-5 if means else torch.finfo(wide(named["input"]).dtype).eps
    weight, bias = (None if given is None else wide(given) for given in (named.get("weight"), named.get("bias")))
    return Norm(wide(named["input"]), means, eps, weight, bias)


def _of_module(given: Given) -> Norm | None:
    module = given.call.module
    eps = [value for name, value in vars(module).items() if "eps" in name and isinstance(value, float)]
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if len(eps) != 1 or weight is None:
        return None
    weight = 1 + wide(weight) if type(module).__name__.startswith("Gemma") else wide(weight)
    x = next(iter((*given.call.args, *given.call.kwargs.values())))
    return Norm(wide(x), given.name == "module layer_norm", eps[0], weight, None if bias is None else wide(bias))


def _as_variant(name: str, form: Form) -> Variant:
    def compute(given: Given) -> Tensor | None:
        norm = _norm(given)
        return None if norm is None else form(norm)

    def make() -> Arithmetic:
        return compute

    return Variant(name, _NAMES, make, ("layer_norm", "rms_norm"))


def _by_moments(norm: Norm) -> tuple[Tensor, Tensor | None]:
    """Variance as mean(x^2) - mean(x)^2."""
    power = norm.x.square().mean(-1, keepdim=True)
    if not norm.removes_mean:
        return power, None
    mean = norm.x.mean(-1, keepdim=True)
    return (power - mean.square()).clamp_min(0), mean


def _by_welford(norm: Norm) -> tuple[Tensor, Tensor | None]:
    """One pass with running mean and sum of squares."""
    mean, squares = torch.zeros_like(norm.x[..., :1]), torch.zeros_like(norm.x[..., :1])
    for k in range(norm.x.shape[-1]):
        x = norm.x[..., k : k + 1]
        if norm.removes_mean:
            step = x - mean
            mean = mean + step / (k + 1)
            squares = squares + step * (x - mean)
        else:
            squares = squares + x * x
    return squares / norm.x.shape[-1], mean if norm.removes_mean else None


def _in_order(norm: Norm, variance: Tensor, mean: Tensor | None, inverse: Tensor | None = None) -> Tensor:
    found = norm.x if mean is None else norm.x - mean
    found = found * (torch.rsqrt(variance + norm.eps) if inverse is None else inverse)
    found = found if norm.weight is None else found * norm.weight
    return found if norm.bias is None else found + norm.bias


def _multiplied_out(norm: Norm, variance: Tensor, mean: Tensor | None) -> Tensor:
    """x scale + shift, both made first."""
    scale = 1 / torch.sqrt(variance + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    shift = None if mean is None else -mean * scale
    if norm.bias is not None:
        shift = norm.bias if shift is None else shift + norm.bias
    return norm.x * scale if shift is None else norm.x * scale + shift


def _two_ulps_off(norm: Norm) -> Tensor:
    """The inverse root off by two units in the last place."""
    variance, mean = _by_moments(norm)
    return _in_order(norm, variance, mean, ulps_off((variance + norm.eps).double().rsqrt(), norm.x.dtype))


NORMS = (
    _as_variant("norm by moments", lambda norm: _in_order(norm, *_by_moments(norm))),
    _as_variant("norm by Welford", lambda norm: _in_order(norm, *_by_welford(norm))),
    _as_variant("norm multiplied out", lambda norm: _multiplied_out(norm, *_by_welford(norm))),
    _as_variant("norm by moments, multiplied out", lambda norm: _multiplied_out(norm, *_by_moments(norm))),
    _as_variant("norm, rsqrt two ulps off", _two_ulps_off),
)
