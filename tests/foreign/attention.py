"""Fused attention as other kernels compute it."""

from math import sqrt

import torch
from torch import Tensor

from noisescope.devices.attention import online, operands

from .device import Arithmetic, Given, Variant, wide

__all__ = ["ONLINE", "PREMULTIPLIED", "WHOLE"]

BLOCK = 5
"""keys that are looked at together"""


def _online() -> Arithmetic:
    return lambda given: online(given, BLOCK)


def _whole(premultiplied: bool) -> Arithmetic:
    """All keys at once; the weights are divided by their sum before they are cast and multiplied."""

    def compute(given: Given) -> Tensor | None:
        if (found := operands(given)) is None:
            return None
        query, key, value, mask, scale = found
        if premultiplied:
            scores = (query * sqrt(scale)) @ (key * sqrt(scale)).transpose(-2, -1)
        else:
            scores = query @ key.transpose(-2, -1) * scale
        scores = scores if mask is None else scores + mask
        dead = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
        return (wide(weights.to(given.value.dtype)) @ value).expand(given.value.shape)

    return compute


_NAMES = ("scaled_dot_product_attention",)
ONLINE = Variant("attention online", _NAMES, _online, ("attention",))
WHOLE = Variant("attention at once", _NAMES, lambda: _whole(False), ("attention",))
PREMULTIPLIED = Variant("attention, query and key scaled first", _NAMES, lambda: _whole(True), ("attention",))
