"""Products on the host: all of it in float32, and in float64 those elements that float32 cannot acquit.

|y - r| <= half an ulp of y's dtype + lam sqrt(K) u |x_i| |w_j| + K tiny (+ lam sqrt(K) u |b| + u' |x_i . w_j|)

The second term is the bound of `rounding` for a sum of K products; by Cauchy and Schwarz the norms stand for
sum|x||w|, so that no second product is needed. Terms below the normal numbers of float32 may be lost, tiny each. An
addend may be what the accumulator starts with, and round with all that comes; or, in a narrow dtype with the unit u',
it is added after the product was rounded. The host's own float32 error has the same size and hides in the bound: what
comes within half of it in float32 is computed again in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from ..rounding import accumulator_unit, half_ulp, quantile, unit
from .arguments import HostCall
from .rules import Rule, know

__all__ = ["Product", "products_of"]

WIDE = 1024
"""columns of a product that are computed together: the head of a model has fifty thousand"""
RECHECKED = 2**14
"""elements that are computed again in float64, those first that are furthest off"""
_TOGETHER = 2**16
"""elements of their operands that are gathered at once"""

NAMES = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "grouped_mm", "einsum", "mv", "dot")


def _spread(call: HostCall, reference: Tensor, alarms: float) -> Tensor:
    """Of a spelling that is not taken apart: lam sqrt(K) u f(|x|, |w|), which is the sum of |x||w| itself."""
    operands = [given for given in call.args if isinstance(given, Tensor)]
    if call.name == "einsum":
        equation = call.args[0].replace(" ", "")
        labels, _, kept = equation.partition("->")
        sizes = {
            label: size
            for names, operand in zip(labels.split(","), operands, strict=False)
            for label, size in zip(names, operand.shape, strict=False)
        }
        terms = prod(size for label, size in sizes.items() if label not in kept)
    else:
        terms = max(operand.shape[-1] for operand in operands)
    lam = quantile(terms, reference.numel(), alarms)
    sizes_only = [given.abs() if isinstance(given, Tensor) else given for given in call.args]
    total: Tensor = call.in_double(*sizes_only)
    return (lam * sqrt(terms) + 2) * accumulator_unit(operands[0].dtype) * total


know(Rule("product", NAMES, _spread))


@dataclass(frozen=True, eq=False)
class Product:
    """left (..., M, K) @ right (..., K, N) + addend, and where in the call's value it stands."""

    left: Tensor
    right: Tensor
    addend: Tensor | None
    rows: slice | None = None
    """the rows of the value, where the call makes several products"""
    factor: float = 1.0
    """what the product is multiplied by before the addend comes to it"""

    @property
    def length(self) -> int:
        """K."""
        return self.left.shape[-1]

    def columns(self) -> Iterator[slice]:
        """The columns, so many at a time that they fit into the memory of a layer."""
        width = self.right.shape[-1]
        yield from (slice(start, min(start + WIDE, width)) for start in range(0, width, WIDE))

    def value(self, columns: slice) -> Tensor:
        """In float32, or float64 for operands of that dtype."""
        left, right = _wide(self.left), _wide(self.right[..., columns])
        found = left @ right if self.factor == 1 else (left @ right) * self.factor
        return found if self.addend is None else found + _wide(_columns(self.addend, columns))

    def in_double(self) -> Tensor:
        """All of it in float64."""
        found = self.left.double() @ self.right.double() * self.factor
        return found if self.addend is None else found + self.addend.double()

    def spread(self, columns: slice, lam: float, u: float | None = None) -> Tensor:
        """The rounding that a healthy device may add before the last, its accumulator having the unit `u`."""
        u = accumulator_unit(self.left.dtype) if u is None else u
        left, right = _norm(self.left, -1), _norm(self.right[..., columns], -2)
        found: Tensor = lam * sqrt(self.length) * u * abs(self.factor) * (left * right)
        found = found.to(_wide(self.left[..., :0]).dtype) + self.length * torch.finfo(torch.float32).tiny
        if self.factor != 1:  # the factor is rounded to the dtype, and the product with it once more
            found = found + 2 * unit(self.left.dtype) * self.value(columns).abs()
        if self.addend is None:
            return found
        addend = _wide(_columns(self.addend, columns))
        found = found + (lam * sqrt(self.length) + 2) * u * addend.abs()
        narrow = unit(self.left.dtype)
        return found + narrow * (self.value(columns) - addend).abs() if narrow > unit(torch.float32) else found

    def exactly(self, index: Tensor, shape: torch.Size, columns: slice) -> Tensor:
        """Single elements of those columns in float64, by their indices in a value of this shape."""
        *batch, row, column = torch.unravel_index(index, shape)
        column = column + columns.start
        found = []
        step = max(1, _TOGETHER // self.length)
        for at in range(0, len(index), step):
            some = slice(at, at + step)
            where = [part[some] for part in batch]
            x = self.left[(*_fitting(where, self.left), row[some])].double()
            w = self.right.transpose(-2, -1)[(*_fitting(where, self.right), column[some])].double()
            total = (x * w).sum(-1) * self.factor
            if self.addend is not None:
                b = self.addend.double().broadcast_to((*shape[:-1], self.right.shape[-1]))
                total = total + b[(*where, row[some], column[some])]
            found.append(total)
        return torch.cat(found)


def products_of(call: HostCall) -> list[Product] | None:
    """The products that a call computes; None for a spelling that is not taken apart here."""
    name, args, kwargs = call.name, call.args, call.kwargs
    if name == "linear":
        return [Product(_matrix(args[0]), args[1].transpose(-2, -1), args[2] if len(args) > 2 else None)]
    if name in ("matmul", "mm", "bmm"):
        left, right = args[:2]
        return [Product(left, right, None)] if left.ndim > 1 and right.ndim > 1 else None
    if name in ("addmm", "baddbmm") and len(args) == 3:
        addend, left, right = args
        alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        return [Product(left, right, _scaled(addend, beta), factor=alpha)]
    if name == "grouped_mm":
        return _groups(*args, **kwargs)
    return None


def _groups(left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> list[Product] | None:
    offs = args[0] if args else kwargs.get("offs")
    if offs is None or left.ndim != 2 or right.ndim != 3 or kwargs.get("bias") is not None:
        return None
    ends = [int(end) for end in offs]
    return [
        Product(left[start:end], right[at], None, slice(start, end))
        for at, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        if end > start
    ]


def _scaled(addend: Tensor, beta: float) -> Tensor | None:
    return None if beta == 0 else addend if beta == 1 else addend * beta


def _matrix(left: Tensor) -> Tensor:
    return left if left.ndim > 1 else left.unsqueeze(0)


def _norm(given: Tensor, dim: int) -> Tensor:
    """In float64: squares of float32 numbers overflow above 1e19, and vanish below 1e-19."""
    found: Tensor = torch.linalg.vector_norm(given, dim=dim, keepdim=True, dtype=torch.float64)
    return found


def _wide(given: Tensor) -> Tensor:
    return given if given.dtype in (torch.float32, torch.float64) else given.float()


def _columns(addend: Tensor, columns: slice) -> Tensor:
    return addend if addend.ndim == 0 or addend.shape[-1] == 1 else addend[..., columns]


def _fitting(where: list[Tensor], operand: Tensor) -> list[Tensor]:
    """Batch indices for an operand that may have fewer batch dimensions, or some of length 1."""
    dims = operand.shape[:-2]
    kept = where[len(where) - len(dims) :]
    return [part if size > 1 else torch.zeros_like(part) for part, size in zip(kept, dims, strict=True)]


def check_product(product: Product, value: Tensor, alarms: float, u: float | None = None) -> tuple[int, float]:
    """How many elements of a product are outside their bound, and the largest error in units of it."""
    lam = quantile(product.length, value.numel(), alarms)
    bad, worst = 0, 0.0
    for columns in product.columns():
        given = value[..., columns]
        reference, spread = product.value(columns), product.spread(columns, lam, u)
        ratio, unclear = _ratio(given, reference, spread)
        if bool(unclear.any()):
            index = _furthest(unclear, ratio)
            exact = product.exactly(index, given.shape, columns)
            again, _ = _ratio(given.reshape(-1)[index], exact, spread.broadcast_to(given.shape).reshape(-1)[index])
            ratio = ratio.reshape(-1).scatter(0, index, again.to(ratio.dtype))
        bad += int((ratio > 1).sum())
        worst = max(worst, float(ratio.max()) if ratio.numel() else 0.0)
    return bad, worst


def _ratio(value: Tensor, reference: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Error in units of the bound, and which elements are beyond half of the spread."""
    last = half_ulp(reference, value.dtype)
    rounded = reference.to(value.dtype)
    same = (value == rounded) | (value.isnan() & rounded.isnan())
    error = torch.where(same, 0.0, (value.to(reference.dtype) - reference).abs().nan_to_num(torch.inf))
    return error / (last + spread), error > last + spread / 2


def _furthest(unclear: Tensor, ratio: Tensor) -> Tensor:
    """The flat indices of the unclear elements; of very many those that are furthest off."""
    index = unclear.reshape(-1).nonzero().squeeze(-1)
    if len(index) <= RECHECKED:
        return index
    return index[ratio.reshape(-1)[index].topk(RECHECKED).indices]
