"""The kinds of faults: one row each, with the arithmetic of a device that is broken in that way.

    kind                      what becomes of the value h, m the magnitude                       documented
    dead_zone                 0 where |h| < m max|h|                                             0.3
    saturation                clamped to +-(1 - m) max|h|                                        0.2
    bias                      h + m std(h)                                                       0.3
    noise                     h + m mean|h| N(0, 1)                                              0.1
    spike                     each element, with probability 0.01 m, is 10 max|h| N(0, 1)        0.1
    gain                      h (1 + m)                                                          0.05
    bit_flip                  each element, with probability m, has one bit inverted             0.0001
    stuck_at                  a share m of the channels is 0                                     0.01
    wrong_rounding            the last m bits of the mantissa are dropped                        4
    low_precision_accumulate  products: partial sums keep m bits of mantissa                     7
    lut_exp                   softmax: exp is taken from a table of step m                       0.0625

max, std and mean are over the channels that the fault strikes. All but the last two are a function of the value alone.
Gain and rounding happen before a result is cast to a narrow dtype, as in hardware that accumulates in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import InputError, unknown_name
from ..injection import by_position
from ..keys import Key
from ..noise import BitFlip

__all__ = ["FAULTS", "Fault", "Kind", "Struck", "register"]


@dataclass(frozen=True)
class Struck:
    """What a fault has to work with: the struck channels of one value, in float32 or wider, and its own dice."""

    value: Tensor
    """(rows, struck channels)"""
    magnitude: float
    absolute: bool
    """True if the magnitude is a threshold itself, not a share of the largest value"""
    dtype: torch.dtype
    """what the result will be cast to"""
    generator: torch.Generator

    @property
    def largest(self) -> Tensor:
        """The largest finite magnitude."""
        found = torch.where(self.value.isfinite(), self.value.abs(), 0.0)
        return found.max() if found.numel() else found.sum()


Act: TypeAlias = Callable[[Struck], Tensor]
Recompute: TypeAlias = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], float], Any]


@dataclass(frozen=True)
class Kind:
    """One row. `act` changes a value; `recompute` computes the operator in another way instead."""

    name: str
    documented: float
    """the magnitude to try first"""
    act: Act | None = None
    recompute: Recompute | None = None
    operators: tuple[str, ...] | None = None
    """where this kind exists; None for everywhere"""
    before_cast: bool = False
    """acts on the float32 result, before it is cast to a narrow dtype"""
    least: float = 0.0
    most: float = float("inf")
    whole: bool = False
    """the magnitude is a number of bits"""
    stochastic: bool = False

    def check(self, magnitude: float, dtype: torch.dtype) -> None:
        """Raises if there is no such magnitude."""
        most = min(self.most, _mantissa_bits(dtype)) if self.whole else self.most
        fits = magnitude > self.least if not self.whole else magnitude >= self.least
        if not (fits and magnitude <= most) or (self.whole and magnitude != int(magnitude)):
            expected = (
                f"a number of bits from {self.least:g} to {most:g}"
                if self.whole
                else f"a number above {self.least:g}" + (f", at most {most:g}" if most != float("inf") else "")
            )
            raise InputError(f"{self.name}: got magnitude {magnitude:g}, expected {expected}")


@dataclass(frozen=True)
class Fault:
    """One fault as a person asks for it: what, how much, where, on which channels, how often."""

    kind: str
    magnitude: float | None = None
    """None for the documented one"""
    site: str = ""
    """layer, layer.operator, layer.module.operator, or the full name of a site"""
    sparsity: float = 1.0
    """share of the channels that are struck, drawn once; at least one"""
    p: float = 1.0
    """probability that a call is struck"""
    absolute: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise unknown_name("fault", self.kind, FAULTS)
        if self.magnitude is None:
            object.__setattr__(self, "magnitude", FAULTS[self.kind].documented)
        for name, share in (("sparsity", self.sparsity), ("p", self.p)):
            if not 0 < share <= 1:
                raise InputError(f"{name}: got {share:g}, expected a share above 0, at most 1")
        if self.absolute and self.kind not in ("dead_zone", "saturation"):
            raise InputError(f"absolute: {self.kind} has no threshold; only dead_zone and saturation have")
        self.row.check(self.size, torch.float64)

    @property
    def row(self) -> Kind:
        """The row of its kind."""
        return FAULTS[self.kind]

    @property
    def size(self) -> float:
        """The magnitude as a number."""
        assert self.magnitude is not None
        return float(self.magnitude)

    def __str__(self) -> str:
        more = [f"sparsity={self.sparsity:g}"] * (self.sparsity < 1) + [f"p={self.p:g}"] * (self.p < 1)
        return ",".join([f"{self.kind}:{self.size:g}@{self.site}", *more, *["absolute"] * self.absolute])


FAULTS: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Adds a row; a name can be taken only once."""
    if kind.name in FAULTS:
        raise InputError(f'fault "{kind.name}" is registered already')
    FAULTS[kind.name] = kind
    return kind


# --- faults of the value ----------------------------------------------------------------------------------------


def _dead_zone(h: Struck) -> Tensor:
    threshold = h.magnitude if h.absolute else h.magnitude * h.largest
    return torch.where(h.value.abs() < threshold, 0.0, h.value)


def _saturation(h: Struck) -> Tensor:
    limit = torch.as_tensor(h.magnitude) if h.absolute else (1 - h.magnitude) * h.largest
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
    dtype = h.dtype if h.dtype in (torch.float32, torch.float16, torch.bfloat16) else torch.float32
    flipped = h.value.to(dtype).contiguous()
    seed = int(torch.randint(2**62, (), generator=h.generator))
    BitFlip(h.magnitude).disturb_(flipped, h.magnitude, Key(seed, "fault"))
    return flipped.to(h.value.dtype)


def _stuck_at(h: Struck) -> Tensor:
    channels = h.value.shape[-1]
    generator = torch.Generator().manual_seed(h.generator.initial_seed())  # the cell is broken, not the moment
    stuck = torch.randperm(channels, generator=generator)[: max(1, round(h.magnitude * channels))]
    return h.value.index_fill(-1, stuck, 0.0)


def _wrong_rounding(h: Struck) -> Tensor:
    return keep_bits(h.value, _mantissa_bits(h.dtype) - int(h.magnitude))


def keep_bits(value: Tensor, bits: int) -> Tensor:
    """The value with its mantissa cut off after that many bits, toward zero."""
    mantissa, exponent = torch.frexp(value)  # 0.5 <= |mantissa| < 1: one bit before those that are kept
    cut = torch.ldexp(torch.trunc(torch.ldexp(mantissa, torch.tensor(bits + 1))), exponent - bits - 1)
    return torch.where(value.isfinite(), cut, value)


def _mantissa_bits(dtype: torch.dtype) -> int:
    return round(-torch.log2(torch.tensor(torch.finfo(dtype).eps, dtype=torch.float64)).item())


register(Kind("dead_zone", 0.3, _dead_zone))
register(Kind("saturation", 0.2, _saturation))
register(Kind("bias", 0.3, _bias))
register(Kind("noise", 0.1, _noise, stochastic=True))
register(Kind("spike", 0.1, _spike, most=100.0, stochastic=True))
register(Kind("gain", 0.05, _gain, before_cast=True, least=-1.0))
register(Kind("bit_flip", 1e-4, _bit_flip, most=1.0, stochastic=True))
register(Kind("stuck_at", 0.01, _stuck_at, most=1.0))
register(Kind("wrong_rounding", 4, _wrong_rounding, before_cast=True, least=1, whole=True))


# --- faults of the arithmetic -----------------------------------------------------------------------------------

BLOCK = 16
"""products that are summed exactly before they go to the accumulator"""


def _low_precision_accumulate(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bits: float
) -> Any:
    """The product with an accumulator that rounds to so many bits of mantissa every sixteen terms.

    Made from differences of the product itself with ever more of the left operand's columns let through, so that it
    holds for every spelling of a product.
    """
    args, kwargs = by_position(function, args, kwargs)
    at = next(place for place, given in enumerate(args) if _is_left_operand(function, place, given))
    left: Tensor = args[at]
    length = left.shape[-1]
    without = _without_addend(function, args)
    total: Tensor | None = None
    for start in range(0, length, BLOCK):
        part = torch.zeros_like(left)
        part[..., start : start + BLOCK] = left[..., start : start + BLOCK]
        some = args if start == 0 else without
        term = function(*some[:at], part, *some[at + 1 :], **(kwargs if start == 0 else _no_bias(kwargs)))
        total = term if total is None else round_bits(total + term, int(bits))
    return total


def _is_left_operand(function: Callable[..., Any], place: int, given: Any) -> bool:
    adds = getattr(function, "__name__", "").strip("_") in ("addmm", "baddbmm")
    return isinstance(given, Tensor) and given.is_floating_point() and place == (1 if adds else place)


def _without_addend(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    name = getattr(function, "__name__", "").strip("_")
    if name in ("addmm", "baddbmm"):
        return (torch.zeros_like(args[0]), *args[1:])
    return (*args[:2], None, *args[3:]) if name == "linear" and len(args) > 2 else args


def _no_bias(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "bias": None} if "bias" in kwargs else kwargs


def round_bits(value: Tensor, bits: int) -> Tensor:
    """The value rounded to so many bits of mantissa, to nearest."""
    mantissa, exponent = torch.frexp(value)
    rounded = torch.ldexp(torch.round(torch.ldexp(mantissa, torch.tensor(bits + 1))), exponent - bits - 1)
    return torch.where(value.isfinite(), rounded, value)


def _lut_exp(_function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: float) -> Any:
    """Softmax with exp looked up at multiples of the step."""
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    x: Tensor = given["input"]
    dim = int(given["dim"])
    shifted = x - x.amax(dim, keepdim=True)
    table = torch.exp(torch.round(shifted / step) * step)
    return table / table.sum(dim, keepdim=True)


register(
    Kind(
        "low_precision_accumulate",
        7,
        recompute=_low_precision_accumulate,
        operators=("linear", "matmul", "bmm"),
        before_cast=True,
        least=1,
        whole=True,
    )
)
register(Kind("lut_exp", 2**-4, recompute=_lut_exp, operators=("softmax",), before_cast=True, most=16.0))
