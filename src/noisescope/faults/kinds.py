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

max, std and mean are over the channels that the fault strikes. All but the last two are a function of the value alone
(`changing`), those compute the operator in another way (`computing`). Gain and rounding happen before a result is cast
to a narrow dtype, as in hardware that accumulates in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, log2
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import InputError, unknown_name

__all__ = ["FAULTS", "Fault", "Kind", "Struck", "mantissa_bits", "register"]


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
    most: float = inf
    whole: bool = False
    """the magnitude is a number of bits"""
    threshold: bool = False
    """the magnitude may be absolute: a threshold itself, not a share of the largest value"""
    stochastic: bool = False

    def check(self, magnitude: float, dtype: torch.dtype, *, absolute: bool = False) -> None:
        """Raises if there is no such magnitude for a value of this dtype."""
        if absolute and not self.threshold:
            names = [name for name, row in FAULTS.items() if row.threshold]
            raise InputError(f"absolute: {self.name} has no threshold; only {' and '.join(names)} have")
        most = inf if absolute else self.most
        if self.whole:
            accumulates = self.recompute is not None and dtype != torch.float64  # in float32, however narrow it ends
            most = min(most, mantissa_bits(torch.float32 if accumulates else dtype))
        above = magnitude >= self.least if self.whole else magnitude > self.least
        if isfinite(magnitude) and above and magnitude <= most and (not self.whole or magnitude == int(magnitude)):
            return
        limit = f", at most {most:g}" if most != inf else ""
        bits, number = f"a number of bits from {self.least:g} to {most:g}", f"a number above {self.least:g}{limit}"
        raise InputError(f"{self.name}: got magnitude {magnitude:g}, expected {bits if self.whole else number}")


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
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1")
        self.row.check(self.size, torch.float64, absolute=self.absolute)

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
        """As it may be written, and read again by `parse_fault`."""
        options = {"sparsity": self.sparsity, "p": self.p}
        more = [f"{name}={_plain(share)}" for name, share in options.items() if share < 1]
        more += [f"seed={self.seed}"] * (self.seed > 0) + ["absolute"] * self.absolute
        return ",".join([f"{self.kind}:{_plain(self.size)}@{self.site}", *more])


FAULTS: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Adds a row; a name can be taken only once."""
    if kind.name in FAULTS:
        raise InputError(f'fault "{kind.name}" is registered already')
    if (kind.act is None) == (kind.recompute is None):
        raise InputError(f'fault "{kind.name}": expected either act or recompute')
    FAULTS[kind.name] = kind
    return kind


def _plain(number: float) -> str:
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def mantissa_bits(dtype: torch.dtype) -> int:
    """How many bits of the mantissa are stored: 23 for float32."""
    return round(-log2(torch.finfo(dtype).eps))
