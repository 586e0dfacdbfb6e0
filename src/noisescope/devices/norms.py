"""Devices whose norms cast to the narrow dtype at other points than this machine's."""

from torch import Tensor

from ..faults.wide import widened
from .given import Given
from .rows import NARROW, Device, register

__all__: list[str] = []

_FUSED = ("layer_norm", "rms_norm")
_HAND_WRITTEN = ("module layer_norm", "module rms_norm")


def _one_cast(given: Given) -> Tensor | None:
    """A hand-written norm with float32 weights and no cast before the last."""
    found: Tensor = given.widely(given.call.function)
    return found


def _cast_in_steps(given: Given) -> Tensor | None:
    """A fused norm as if written by hand: normalised and cast, times weight and cast, plus bias and cast."""
    dtype = given.value.dtype
    names = ("weight", "bias", "eps") if given.name == "layer_norm" else ("weight", "eps")
    named = given.named("input", "normalized_shape", *names)
    weight, bias = named.pop("weight", None), named.pop("bias", None)
    found: Tensor = given.call.function(widened(named.pop("input")), **named).to(dtype)
    for part, combine in ((weight, Tensor.mul), (bias, Tensor.add)):
        found = found if part is None else combine(found, part.to(dtype))
    return found


register(
    Device(
        "fused_norm_casts",
        "Hand-written norms of a narrow model are computed in float32 throughout and cast once, as fused kernels do.",
        _HAND_WRITTEN,
        lambda _dice: _one_cast,
        honest=True,
        dtypes=NARROW,
    )
)
register(
    Device(
        "stepwise_norm_casts",
        "Fused norms of a narrow model cast before they multiply by weights and add a bias, as hand-written ones do.",
        _FUSED,
        lambda _dice: _cast_in_steps,
        honest=False,
        dtypes=NARROW,
    )
)
