"""Products whose sums are taken in another order, or in fewer bits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from noisescope.devices.products import round_to_tf32
from noisescope.injection import attention_in_steps, sdpa_arguments

from .device import Arithmetic, Given, Variant, wide

__all__ = ["ORDERS", "REDUCED", "fused"]

NAMES = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "grouped_mm")
SUMS = ("sum", "mean")

Multiply: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(..., M, K) @ (..., K, N), both in the accumulator's dtype"""


@dataclass(frozen=True, eq=False)
class Factors:
    """alpha left @ right + beta addend."""

    left: Tensor
    right: Tensor
    addend: Tensor | None = None
    alpha: float = 1.0
    beta: float = 1.0

    def value(self, multiply: Multiply) -> Tensor:
        found = multiply(wide(self.left), wide(self.right))
        found = found if self.alpha == 1 else found * self.alpha
        if self.addend is None or self.beta == 0:
            return found
        return found + (wide(self.addend) if self.beta == 1 else wide(self.addend) * self.beta)


def factors(given: Given) -> Factors | None:
    """A product taken apart; None for a spelling that is left alone."""
    if given.name == "linear":
        named = given.named("input", "weight", "bias")
        return Factors(named["input"], named["weight"].transpose(-2, -1), named.get("bias"))
    if given.name in ("matmul", "mm", "bmm"):
        named = given.named("input", "other")
        right = next(named[key] for key in ("other", "mat2") if key in named)
        return Factors(named["input"], right) if named["input"].ndim > 1 and right.ndim > 1 else None
    names = ("mat1", "mat2") if given.name == "addmm" else ("batch1", "batch2")
    named = given.named("input", *names)
    return Factors(named[names[0]], named[names[1]], named["input"], named.get("alpha", 1.0), named.get("beta", 1.0))


def products(make: Callable[[], Multiply]) -> Callable[[], Arithmetic]:
    """Every spelling of a product, computed by one way to multiply."""

    def made() -> Arithmetic:
        multiply = make()

        def compute(given: Given) -> Tensor | None:
            if given.name in SUMS:
                return _summed(given, multiply)
            if given.name == "grouped_mm":
                return _grouped(given, multiply)
            parts = factors(given)
            return None if parts is None else parts.value(multiply)

        return compute

    return made


def _grouped(given: Given, multiply: Multiply) -> Tensor | None:
    named = given.named("input", "mat2", "offs")
    left, right, ends = named["input"], named["mat2"], [int(end) for end in named["offs"]]
    if left.ndim != 2 or right.ndim != 3:
        return None
    found = wide(given.value).clone()  # rows after the last group are nobody's
    for at, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        found[start:end] = multiply(wide(left[start:end]), wide(right[at]))
    return found


def _summed(given: Given, multiply: Multiply) -> Tensor | None:
    """A sum over one dimension is a product with ones."""
    named = given.named("input", "dim")
    x, dim = named["input"], named.get("dim")
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int) or not x.is_floating_point():
        return None
    rows = wide(x).movedim(dim, -1)
    found = multiply(rows.unsqueeze(-2), torch.ones(rows.shape[-1], 1, dtype=rows.dtype)).reshape(rows.shape[:-1])
    found = found / rows.shape[-1] if given.name == "mean" else found
    return found.unsqueeze(dim) if named.get("keepdim") else found


# --- orders -----------------------------------------------------------------------------------------------------


def sequential(left: Tensor, right: Tensor) -> Tensor:
    """One term after the other, product and sum rounded each."""
    total = left[..., :1] * right[..., :1, :]
    for k in range(1, left.shape[-1]):
        total = total + left[..., k : k + 1] * right[..., k : k + 1, :]
    return total


def fused(left: Tensor, right: Tensor) -> Tensor:
    """One term after the other by fused multiply-add: one rounding a term."""
    total = left[..., :1] * right[..., :1, :]
    for k in range(1, left.shape[-1]):
        term = left[..., k : k + 1].double() * right[..., k : k + 1, :].double()
        total = (total.double() + term).to(left.dtype)
    return total


def backwards(left: Tensor, right: Tensor) -> Tensor:
    return sequential(left.flip(-1), right.flip(-2))


def pairwise(left: Tensor, right: Tensor) -> Tensor:
    """Halves, quarters, ... down to single terms."""
    length = left.shape[-1]
    if length <= 2:
        return sequential(left, right)
    half = length // 2
    return pairwise(left[..., :half], right[..., :half, :]) + pairwise(left[..., half:], right[..., half:, :])


def strided(left: Tensor, right: Tensor) -> Tensor:
    """Eight lanes that each sum every eighth term, then across."""
    lanes = [sequential(left[..., at::8], right[..., at::8, :]) for at in range(min(8, left.shape[-1]))]
    return torch.stack(lanes).sum(0)


def truncated(left: Tensor, right: Tensor, block: int = 8) -> Tensor:
    """Blocks of eight summed exactly, the accumulator cut toward zero: as tensor cores do for narrow operands."""
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, left.shape[-1], block):
        some = slice(start, start + block)
        total = _cut(total + left[..., some].double() @ right[..., some, :].double(), left.dtype)
    return total.to(left.dtype)


def _cut(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded toward zero to that dtype, in float64."""
    near = value.to(dtype)
    over = near.double().abs() > value.abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near).double()


def exact(left: Tensor, right: Tensor) -> Tensor:
    """A wider accumulator: float64."""
    return left.double() @ right.double()


class SplitK:
    """The terms dealt out to several units in an order that nobody can foretell, as with atomic additions.

    `calm` is the share of calls that come out in the usual order: some devices race only now and then.
    """

    def __init__(self, calm: float = 0.0) -> None:
        self._dice = torch.Generator().manual_seed(0)
        self._calm = calm

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        length = left.shape[-1]
        order = torch.arange(length)
        if float(torch.rand((), generator=self._dice)) >= self._calm:
            order = torch.randperm(length, generator=self._dice)
        parts = order.chunk(min(4, length))
        total = left[..., parts[0]] @ right[..., parts[0], :]
        for part in parts[1:]:
            total = total + left[..., part] @ right[..., part, :]
        return total


def _narrow_only(arithmetic: Arithmetic) -> Arithmetic:
    return lambda given: None if given.value.dtype in (torch.float32, torch.float64) else arithmetic(given)


def _order(name: str, make: Callable[[], Multiply]) -> Variant:
    return Variant(name, (*NAMES, *SUMS), products(make))


def _bias_later() -> Arithmetic:
    """The product is cast before the bias is added."""

    def compute(given: Given) -> Tensor | None:
        parts = factors(given)
        if parts is None or parts.addend is None:
            return None
        return wide((wide(parts.left) @ wide(parts.right) * parts.alpha).to(given.value.dtype)) + wide(parts.addend)

    return compute


ORDERS = (
    _order("sequential sums", lambda: sequential),
    _order("fused multiply-add", lambda: fused),
    _order("reversed sums", lambda: backwards),
    _order("pairwise sums", lambda: pairwise),
    _order("strided sums", lambda: strided),
    Variant("truncated accumulator", NAMES, lambda: _narrow_only(products(lambda: truncated)())),
    _order("float64 sums", lambda: exact),
    _order("split K", SplitK),
    _order("split K now and then", lambda: SplitK(0.9)),
    Variant("bias after the cast", ("linear", "addmm"), _bias_later, operators=("bias",)),
)

# --- fewer bits -------------------------------------------------------------------------------------------------


def tf32(left: Tensor, right: Tensor) -> Tensor:
    """Operands of float32 rounded to ten bits."""
    return round_to_tf32(left) @ round_to_tf32(right)


def _tf32() -> Arithmetic:
    plain = products(lambda: tf32)()

    def compute(given: Given) -> Tensor | None:
        if given.value.dtype != torch.float32:
            return None
        if given.name != "scaled_dot_product_attention":
            return plain(given)

        def step(operator: str, function: Callable[..., Tensor], args: tuple, kwargs: dict) -> Tensor:
            return tf32(*args) if operator == "matmul" else function(*args, **kwargs)

        return attention_in_steps(step, **sdpa_arguments(given.call.args, given.call.kwargs))

    return compute


def _narrow_reduction() -> Arithmetic:
    """Split K whose parts are cast to the narrow dtype before they are added."""

    def compute(given: Given) -> Tensor | None:
        dtype = given.value.dtype
        if dtype in (torch.float32, torch.float64):
            return None

        def multiply(left: Tensor, right: Tensor) -> Tensor:
            half = max(1, left.shape[-1] // 2)
            parts = [(left[..., :half] @ right[..., :half, :]), (left[..., half:] @ right[..., half:, :])]
            return sum(part.to(dtype).float() for part in parts)

        return products(lambda: multiply)()(given)

    return compute


REDUCED = (
    Variant("tf32", (*NAMES, "scaled_dot_product_attention"), _tf32),
    Variant("narrow reduction", NAMES, _narrow_reduction),
)
