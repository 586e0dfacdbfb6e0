"""Faults of the value: what a broken output stage makes of a right result."""

import torch
from torch import Tensor

from ..keys import Key
from ..noise import BitFlip
from .kinds import Kind, Struck, mantissa_bits, register

__all__ = ["keep_bits"]


def _dead_zone(h: Struck) -> Tensor:
    threshold = h.magnitude if h.absolute else h.magnitude * h.largest
    return torch.where(h.value.abs() < threshold, 0.0, h.value)


def _saturation(h: Struck) -> Tensor:
    limit = h.magnitude if h.absolute else float((1 - h.magnitude) * h.largest)
    return h.value.clamp(-limit, limit)


def _bias(h: Struck) -> Tensor:
    finite = h.value[h.value.isfinite()]
    return h.value + (h.magnitude * finite.std(correction=0) if finite.numel() else 0.0)


def _noise(h: Struck) -> Tensor:
    finite = h.value[h.value.isfinite()]
    scale = h.magnitude * finite.abs().mean() if finite.numel() else 0.0
    return h.value + scale * torch.randn(h.value.shape, generator=h.generator, dtype=h.value.dtype)


def _spike(h: Struck) -> Tensor:
    struck = torch.rand(h.value.shape, generator=h.generator) < 0.01 * h.magnitude
    spikes = 10 * h.largest * torch.randn(h.value.shape, generator=h.generator, dtype=h.value.dtype)
    return torch.where(struck, spikes, h.value)


def _gain(h: Struck) -> Tensor:
    return h.value * (1 + h.magnitude)


def _bit_flip(h: Struck) -> Tensor:
    narrow = h.dtype if h.dtype in (torch.float16, torch.bfloat16) else torch.float32
    flipped = h.value.to(narrow).contiguous()
    before = flipped.clone()
    seed = int(torch.randint(2**62, (), generator=h.generator))
    BitFlip(h.magnitude).disturb_(flipped, h.magnitude, Key(seed, "fault"))
    bits = torch.int32 if narrow == torch.float32 else torch.int16
    return torch.where(flipped.view(bits) == before.view(bits), h.value, flipped.to(h.value.dtype))


def _stuck_at(h: Struck) -> Tensor:
    channels = h.value.shape[-1]
    generator = torch.Generator().manual_seed(h.generator.initial_seed())  # the cell is broken, not the moment
    stuck = torch.randperm(channels, generator=generator)[: max(1, round(h.magnitude * channels))]
    return h.value.index_fill(-1, stuck, 0.0)


def _wrong_rounding(h: Struck) -> Tensor:
    return keep_bits(h.value, mantissa_bits(h.dtype) - int(h.magnitude))


def keep_bits(value: Tensor, bits: int) -> Tensor:
    """The value with its mantissa cut off after that many bits, toward zero."""
    mantissa, exponent = torch.frexp(value.double())  # 0.5 <= |mantissa| < 1: one bit before those that are kept
    cut = torch.ldexp(torch.trunc(torch.ldexp(mantissa, torch.tensor(bits + 1))), exponent - bits - 1)
    return torch.where(value.isfinite(), cut.to(value.dtype), value)


register(Kind("dead_zone", 0.3, _dead_zone, threshold=True))
register(Kind("saturation", 0.2, _saturation, threshold=True, most=1.0))
register(Kind("bias", 0.3, _bias))
register(Kind("noise", 0.1, _noise, stochastic=True))
register(Kind("spike", 0.1, _spike, most=100.0, stochastic=True))
register(Kind("gain", 0.05, _gain, before_cast=True, least=-1.0))
register(Kind("bit_flip", 1e-4, _bit_flip, most=1.0, stochastic=True))
register(Kind("stuck_at", 0.01, _stuck_at, most=1.0))
register(Kind("wrong_rounding", 4, _wrong_rounding, before_cast=True, least=1, whole=True))
