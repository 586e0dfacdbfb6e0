"""How much memory a capture may take, and what it is going to take, known before the model runs.

A linear or a norm says how wide its input and output are, so what the statistics need is known when a capture is
opened, and what stored tensors need once the number of tokens is. Everything else is counted just before it is kept.
Working memory comes on top: about 10 MiB on a CPU, 50 MiB on another device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import BudgetExceeded, InputError
from ..sites import Layout, Site
from ..specs import Layer

__all__ = ["Budget", "ExpectedSite", "expected_sites", "tensor_bytes", "token_embedding", "value_bytes"]


@dataclass(frozen=True)
class ExpectedSite:
    """A site that will be seen when the model runs, and how wide it is."""

    site: Site
    input_width: int
    output_width: int


def expected_sites(layout: Layout, meant: Callable[[Layer | None, str, str], bool]) -> Iterator[ExpectedSite]:
    """The meant sites among those whose width can be read from their module."""
    layers: dict[nn.Module, Layer] = dict(layout.layer)
    for index, block in enumerate(layout.blocks):
        layers |= dict.fromkeys(block.modules(), index)
    for module, path in layout.paths.items():
        operator = layout.operator.get(module, "linear")
        widths = _widths(module, operator)
        if widths is not None and meant(layers.get(module), operator, path):
            yield ExpectedSite(Site(layers.get(module), operator, path), *widths)


def _widths(module: nn.Module, operator: str) -> tuple[int, int] | None:
    """The last dimensions of a module's input and output, where it says them."""
    if operator.endswith("_norm"):
        weight = getattr(module, "weight", None)
        return (weight.numel(), weight.numel()) if isinstance(weight, Tensor) else None
    for names in (("in_features", "out_features"), ("nx", "nf")):  # nn.Linear and its kin, GPT-2's Conv1D
        found = tuple(getattr(module, name, None) for name in names)
        if all(isinstance(width, int) for width in found):
            return found  # type: ignore[return-value]
    return None


def token_embedding(layout: Layout) -> str | None:
    """Where a model looks its tokens up, if one number of tokens holds for all its blocks: not so beside an encoder."""
    tables = [module for module, role in layout.layer.items() if role == "embed" and isinstance(module, nn.Embedding)]
    if not tables or len(layout.stacks) > 1:
        return None
    return layout.paths[max(tables, key=lambda module: module.num_embeddings)]


def tensor_bytes(tensor: Tensor) -> int:
    """Memory that a copy of the tensor takes."""
    return tensor.numel() * tensor.element_size()


def value_bytes(model: nn.Module) -> int:
    """Bytes of one value of a linear, as the model runs now: of autocast's dtype, else of its own."""
    own = next((p for p in model.parameters() if p.is_floating_point() and p.element_size() > 1), None)
    if own is None:
        return torch.get_default_dtype().itemsize
    if torch.is_autocast_enabled(own.device.type):
        return torch.get_autocast_dtype(own.device.type).itemsize
    return own.element_size()


class Budget:
    """An account of bytes that refuses to be overdrawn."""

    def __init__(self, allowed_bytes: int) -> None:
        if isinstance(allowed_bytes, bool) or not isinstance(allowed_bytes, int) or allowed_bytes < 0:
            raise InputError(f"budget_bytes: got {allowed_bytes!r}, expected a whole number of bytes")
        self.allowed_bytes = allowed_bytes
        self.used_bytes = 0

    def check(self, more_bytes: int, what: str) -> None:
        """Raises if that much more does not fit."""
        needed = self.used_bytes + more_bytes
        if needed > self.allowed_bytes:
            raise BudgetExceeded(
                f"capture: {what} needs {_size(needed)} in all, budget_bytes allows {_size(self.allowed_bytes)}; "
                "select fewer layers or modules, store less, capture fewer tokens at a time, or raise budget_bytes"
            )

    def take(self, more_bytes: int, what: str) -> None:
        """Books that much more, or raises."""
        self.check(more_bytes, what)
        self.used_bytes += more_bytes


def _size(count: int) -> str:
    """Bytes exactly and, from a mebibyte on, in units that can be read."""
    exact = f"{count:,}".replace(",", " ") + " bytes"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{exact} ({count / size:.1f} {unit})"
    return exact
