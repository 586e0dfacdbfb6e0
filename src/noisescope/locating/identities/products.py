"""Identities of products: linear layers, the two products of attention, grouped products of experts.

With left operand x, right operand w (K terms a sum) and addend b:

    rows scaled   f(s x, w) = s f(x, w), every row with its own s = +-2^k     bit for bit: scaling by 2 never rounds
    doubled       f(2x, w, 2b) = 2 f(x, w, b)                                 bit for bit
    negated       f(-x, w, -b) = -f(x, w, b)                                  bit for bit
    known         f(x, tiled identity) = x                                    bit for bit: one term of each sum is not 0
    permuted      f(x, w permuted) = f(x, w) permuted                         up to rounding: any order of sums
    checksum      sum_j f(x, w)_j = x . (sum_j w_j) + sum_j b_j, by another operator, up to rounding
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...injection import Call, by_position, plain_name
from ..host.products import Product
from ..rounding import alike, half_ulp, quantile
from .identity import Expectation, Probe, laid_out_like, register

__all__: list[str] = []

PRODUCTS = ("linear", "matmul", "bmm")
_ROUNDING = ("gain", "stuck_at", "wrong_rounding", "low_precision_accumulate")
"""faults that commute with scaling by powers of two, whatever the row"""
_SCALING = ("dead_zone", "saturation", *_ROUNDING)
"""and those whose threshold is a share of the tensor's largest value, if the whole tensor is scaled"""


@dataclass(frozen=True)
class _Parts:
    """A product taken apart, to be put together again with other operands."""

    left: Tensor
    right: Tensor
    """(..., K, N)"""
    addend: Tensor | None
    args: Callable[[Tensor, Tensor, Tensor | None], tuple[Any, ...]]
    factor: float = 1.0
    """alpha of addmm: what the product is multiplied by"""

    def product(self) -> Product:
        """The same on the host."""
        addend = None if self.addend is None else self.addend.cpu()
        return Product(self.left.cpu(), self.right.cpu(), addend, factor=self.factor)


def _parts(call: Call) -> _Parts | None:
    name = plain_name(call.function)
    args, kwargs = by_position(call.function, call.args, call.kwargs)
    if name == "linear":
        addend = args[2] if len(args) > 2 else None
        return _Parts(args[0], args[1].transpose(-2, -1), addend, lambda x, w, b: (x, w.transpose(-2, -1), b))
    if name == "grouped_mm":
        return _grouped(call)
    if name in ("matmul", "mm", "bmm") and args[0].ndim > 1 and args[1].ndim > 1:
        return _Parts(args[0], args[1], None, lambda x, w, _b: (x, w))
    if name in ("addmm", "baddbmm") and len(args) == 3 and kwargs.get("beta", 1) == 1:
        shape = args[0].shape

        def put(x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Any, ...]:
            return torch.zeros(shape, dtype=x.dtype, device=x.device) if b is None else b, x, w

        return _Parts(args[1], args[2], args[0], put, kwargs.get("alpha", 1.0))
    return None


def _grouped(call: Call) -> _Parts | None:
    if len(call.args) != 2 or call.args[1].ndim != 3 or call.kwargs.get("offs") is None:
        return None
    if any(given is not None for name, given in call.kwargs.items() if name != "offs"):
        return None
    return _Parts(call.args[0], call.args[1], None, lambda x, w, _b: (x, w))


def _run(probe: Probe, parts: _Parts, left: Tensor, right: Tensor, addend: Tensor | None) -> Tensor:
    """The device's product of these; nothing but the operator itself is computed there."""
    device = probe.value.device
    left = left if left is parts.left else laid_out_like(left, parts.left)
    right = right if right is parts.right else laid_out_like(right, parts.right)
    args = parts.args(left, right, None if addend is None else addend.to(device))
    _, kwargs = by_position(probe.call.function, probe.call.args, probe.call.kwargs)
    found: Tensor = probe.device.run(probe.call.function, *args, **kwargs)
    return found


def _floor(value: Tensor, length: int, scale: float) -> float:
    """What a scaled probe may lose otherwise than the call: terms, or results, too small for a normal number."""
    info = torch.finfo(value.dtype)
    terms = length * torch.finfo(torch.float32).tiny
    return scale * max(terms, info.smallest_normal * info.eps)


def _fits(*tensors: Tensor | None, scale: float) -> bool:
    return all(
        tensor is None or not tensor.numel() or float(tensor.abs().max()) * scale < torch.finfo(tensor.dtype).max
        for tensor in tensors
    )


@register("rows scaled", *PRODUCTS, exact=True, blind_to=_ROUNDING)
def _rows_scaled(probe: Probe) -> Expectation | None:
    parts = _parts(probe.call)
    if parts is None or not parts.left.numel():
        return None
    left = parts.left
    power = 8.0 if _fits(left, probe.value, scale=16.0) else 1.0
    rows = left.shape[-2]
    scales = torch.tensor([1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 8.0, -8.0]).clamp(-power, power)
    each = scales[torch.arange(rows * 5, rows * 6) % len(scales)].roll(1).view(rows, 1).to(left.dtype)
    value = probe.value if parts.addend is None else _run(probe, parts, left, parts.right, None)
    got = _run(probe, parts, left.cpu() * each, parts.right, None)
    expected = value.cpu() * (each if value.ndim > 1 else each[0])
    return Expectation(got, expected, floor=_floor(probe.value, left.shape[-1], 16.0))


def _scaled(probe: Probe, scale: float) -> Expectation | None:
    parts = _parts(probe.call)
    if parts is None or not _fits(parts.left, probe.value, parts.addend, scale=2 * abs(scale)):
        return None
    addend = None if parts.addend is None else parts.addend * scale
    got = _run(probe, parts, parts.left * scale, parts.right, addend)
    return Expectation(got, probe.value.cpu() * scale, floor=_floor(probe.value, parts.left.shape[-1], 4.0))


@register("doubled", *PRODUCTS, exact=True, blind_to=(*_SCALING, "bias"))
def _doubled(probe: Probe) -> Expectation | None:
    return _scaled(probe, 2.0)


@register("negated", *PRODUCTS, exact=True, blind_to=_SCALING)
def _negated(probe: Probe) -> Expectation | None:
    return _scaled(probe, -1.0)


@register("known", *PRODUCTS, exact=True, order_free=True)
def _known(probe: Probe) -> Expectation | None:
    parts = _parts(probe.call)
    if parts is None or parts.factor != 1 or not bool(parts.left.isfinite().all()):
        return None
    length, width = parts.right.shape[-2:]
    columns = torch.arange(width) % length
    tiled = torch.zeros_like(parts.right, device="cpu")
    tiled[..., columns, torch.arange(width)] = 1
    got = _run(probe, parts, parts.left, tiled, None)
    expected = parts.left.cpu()[..., columns].to(probe.value.dtype)
    return Expectation(got, expected.broadcast_to(got.shape), floor=torch.finfo(torch.float32).tiny)


@register(
    "permuted",
    *PRODUCTS,
    exact=False,
    blind_to=("dead_zone", "saturation", "bias", "gain", "wrong_rounding", "low_precision_accumulate"),
)
def _permuted(probe: Probe) -> Expectation | None:
    parts = _parts(probe.call)
    if parts is None or parts.right.shape[-1] < 2 or plain_name(probe.call.function) == "grouped_mm":
        return None
    width = parts.right.shape[-1]
    order = torch.arange(width).roll(width // 2 + 1).flip(0)
    addend = parts.addend
    if addend is not None and addend.ndim and addend.shape[-1] == width:
        addend = addend.cpu()[..., order]
    got = _run(probe, parts, parts.left, _reordered(parts.right.cpu(), order), addend)
    value = probe.value.cpu()

    def bound() -> Tensor:
        product = parts.product()
        lam = quantile(product.length, got.numel(), probe.alarms)
        whole = torch.cat([product.spread(columns, lam) for columns in product.columns()], -1)
        spread = whole.broadcast_to(_shaped(value).shape).reshape(value.shape)
        return (2 * (half_ulp(value.float(), value.dtype) + spread))[..., order]

    return Expectation(got, value[..., order], bound)


def _reordered(right: Tensor, order: Tensor) -> Tensor:
    """Other columns, taken where a column lies in one piece: weights are stored so."""
    if right.stride(-2) == 1:
        return right.transpose(-2, -1).index_select(-2, order).transpose(-2, -1)
    return right.index_select(-1, order)


@register("checksum", *PRODUCTS, exact=False, blind_to=("wrong_rounding",), cost=0.0)
def _checksum(probe: Probe) -> Expectation | None:
    """The errors of different columns are independent, those of equal columns are equal: `rounding.alike` of a sum."""
    parts = _parts(probe.call)
    if parts is None or plain_name(probe.call.function) == "grouped_mm" or probe.value.dtype == torch.float64:
        return None  # the host would need more than float64 to sum these
    product, value = parts.product(), _shaped(probe.value.cpu())
    lam = quantile(product.length, value.numel(), probe.alarms)
    expected: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    key = torch.rand(product.length, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = [(product.right[..., columns].double() * key).sum(-2) for columns in product.columns()]
    together = alike(torch.cat(keys, -1)).unsqueeze(-2)
    for columns in product.columns():
        some = product.right[..., columns].sum(-1, dtype=torch.float64)
        expected = expected + (product.left.double() * some.unsqueeze(-2)).sum(-1) * product.factor
        if product.addend is not None:
            expected = expected + product.addend.broadcast_to(value.shape)[..., columns].double().sum(-1)
        spread = product.spread(columns, lam).double()
        last = half_ulp(value[..., columns].double(), value.dtype)
        squares = squares + (together[..., columns] * (spread + lam * last).square()).sum(-1)
    got = value.double().sum(-1)
    bound = torch.as_tensor(squares).sqrt().broadcast_to(got.shape)
    due = torch.where(got.isfinite(), torch.as_tensor(expected), got)  # of an overflow the host judges
    return Expectation(got, due, lambda: bound)


def _shaped(value: Tensor) -> Tensor:
    return value if value.ndim > 1 else value.unsqueeze(0)
