"""Precision modes: what a healthy device may do otherwise on purpose, in all its products.

    mode               what it does                                 how it is recognised
    tf32               operands lose all but 10 bits of mantissa    products of such operands explain the values
    bf16_operands      operands are cast to bfloat16                the same
    fp16_accumulator   sums are kept in float16                     the bound with its unit, 2^-11
    bf16_accumulator   sums are kept in bfloat16                    the bound with its unit, 2^-8
    flush              numbers below the normal ones are 0          every deviation is such a 0

A mode is a contract: somebody says that the device has it (`precision_mode=`), or nearly all products of a pass are
explained by it. A single operator that computes so is a fault, and so is what the mode does not explain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from .host import HostCall
from .host.attention import attention_in_double, attention_spread
from .host.products import Product, check_product, products_of
from .identities.identity import Expectation
from .rounding import half_ulp

__all__ = ["FLUSH", "MODES", "Mode", "explaining_modes"]

FLUSH = "flush"
"""the mode that is excused call by call, whether anybody says it or not"""
NEARLY_ALL = 0.9
"""share of a pass's products that must be off alike to be a mode and no fault"""


@dataclass(frozen=True)
class Mode:
    """One row: the unit of its roundings, and whether operands are rounded or sums."""

    name: str
    says: str
    unit: float
    round_operands: Callable[[Tensor], Iterator[Tensor]] | None = None
    """the ways in which operands may be rounded; None if sums are"""

    def explains(self, call: HostCall, value: Tensor, alarms: float) -> bool:
        """Whether a product, or fused attention, is what a healthy device in this mode gives."""
        if call.name == "scaled_dot_product_attention":
            return self._explains_attention(call, value, alarms)
        parts = products_of(call)
        if parts is None:
            return False
        given = value if value.ndim > 1 else value.unsqueeze(0)
        pieces = [(part, given if part.rows is None else given[part.rows]) for part in parts]
        return all(self._explains_product(part, piece, alarms) for part, piece in pieces)

    def _explains_product(self, product: Product, value: Tensor, alarms: float) -> bool:
        if self.round_operands is None:
            return not check_product(product, value, alarms, u=self.unit)[0]
        ways = zip(self.round_operands(product.left), self.round_operands(product.right), strict=True)
        return any(
            not check_product(replace(product, left=left, right=right), value, alarms)[0] for left, right in ways
        )

    def _explains_attention(self, call: HostCall, value: Tensor, alarms: float) -> bool:
        """Within the bound of a kernel whose roundings all have this mode's unit."""
        due = attention_in_double(call)
        bound = attention_spread(call, alarms, u=self.unit) + half_ulp(due, value.dtype)
        return bool(((value.double() - due).abs() <= bound).all())


def _tf32(operand: Tensor) -> Iterator[Tensor]:
    """To nearest, even and away, and cut off: hardware does each of these."""
    if operand.dtype != torch.float32:
        yield from (operand, operand, operand)
        return
    bits = operand.contiguous().view(torch.int32)
    for more in (0x0FFF + ((bits >> 13) & 1), 0x1000, 0):
        yield ((bits + more) & ~0x1FFF).view(torch.float32)


def _bf16(operand: Tensor) -> Iterator[Tensor]:
    yield operand.to(torch.bfloat16).to(operand.dtype)


MODES: Mapping[str, Mode] = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            Mode("tf32", "products round their operands to TF32 (10 bits of mantissa)", 2.0**-11, _tf32),
            Mode("fp16_accumulator", "products keep their sums in float16", 2.0**-11),
            Mode("bf16_operands", "products round their operands to bfloat16", 2.0**-8, _bf16),
            Mode("bf16_accumulator", "products keep their sums in bfloat16", 2.0**-8),
        )
    }
)


def explaining_modes(
    call: HostCall, value: Tensor, alarms: float, shown: Sequence[Expectation] = ()
) -> tuple[str, ...]:
    """The modes in which a healthy device would have given this value, the finest first.

    `shown` are bit-exact identities that failed: a mode must explain these too, which a wide bound of a long sum does
    not do for it. A known product has one term, so it is off by no more than the roundings of its operands or its sum.
    """
    return tuple(
        name
        for name, mode in MODES.items()
        if all(_is_near(one, 4 * mode.unit) for one in shown) and mode.explains(call, value, alarms)
    )


def _is_near(one: Expectation, share: float) -> bool:
    got, expected = one.got.cpu().double(), one.expected.cpu().double()
    return bool(((got - expected).abs() <= share * expected.abs() + one.floor).all())
