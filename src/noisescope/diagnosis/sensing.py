"""An observer that weighs every value of a forward pass by its gradient, in the backward pass that follows.

For each site with value y and gradient g it sums (y g)^2, the effect of relative noise, and g^2, that of absolute noise
and the Fisher information of the activation: by cell (layer x operator) and sequence, and by channel. Only sums are
kept; the values are held until their gradient has come, as autograd itself holds most of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..sites import Site
from ..specs import Layer, Phase

__all__ = ["Cell", "ChannelSums", "Sensing"]

Cell: TypeAlias = tuple[Layer, str]
"""layer and operator"""

NEAR_ZERO = 1e-6
"""below this a value counts for sparsity"""
_ACTIVATIONS = ("silu", "gelu")
_BY_HEAD = ("softmax", "matmul", "bmm")
"""operators whose last dimension are positions, or parts of a head: their channels are the heads"""
_PIECE = 2**21
"""values whose squares are summed up at a time"""


@dataclass
class ChannelSums:
    """Sums of one site over all tokens and sequences, one element per channel."""

    relative: Tensor
    absolute: Tensor


@dataclass
class _Pending:
    """A value that waits for its gradient."""

    sites: tuple[Site, ...]
    value: Tensor
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.value._version

    @property
    def changed(self) -> bool:
        """True if the model went on to change the value in place."""
        return self.value._version != self.version


@dataclass
class Sensing:
    """The observer of one batch after another. `shape` are the rows and tokens of the batch that runs."""

    meant: Callable[[Layer | None, str, str], bool]
    grouped: frozenset[str] = frozenset()
    """modules whose rows are tokens grouped by expert, not sequences"""
    shape: tuple[int, int] = (0, 0)
    relative: dict[Cell, Tensor] = field(default_factory=dict)
    """per sequence of the current batch, or one number where values are not ordered by sequence"""
    absolute: dict[Cell, Tensor] = field(default_factory=dict)
    channels: dict[str, ChannelSums] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)
    near_zero: dict[Layer, tuple[int, int]] = field(default_factory=dict)
    """layer -> how many values of its activation functions were almost 0, and of how many"""
    leaves: list[Tensor] = field(default_factory=list)
    """where the gradient ends: what the embeddings gave"""
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _copied: set[tuple[str, str]] = field(default_factory=set)
    """module and operator of values that the model changes in place"""

    # --- the observer -------------------------------------------------------------------------------------------

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True where the map is asked for, and at the embedding, where the gradient ends."""
        if phase != "forward" or layer is None:
            return False
        return operator == "embedding" or self.meant(layer, operator, module)

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value, which will show its gradient."""
        if not value.is_floating_point() or not torch.is_grad_enabled():
            return value
        if sites[0].operator == "embedding" and sites[0].layer == "embed":
            leaf = value.detach().requires_grad_()
            self.leaves.append(leaf)
            self._await(sites, leaf)
            return leaf.clone()  # which may be changed in place, as a leaf may not
        if value.requires_grad:
            self._await(sites, value)
        if sites[0].operator in _ACTIVATIONS:
            self._count_near_zero(sites[0], value)
        return value

    def _await(self, sites: tuple[Site, ...], value: Tensor) -> None:
        if wanted := tuple(site for site in sites if self._is_meant(site)):
            at = len(self._pending)
            is_copied = (wanted[0].module, wanted[0].operator) in self._copied
            self._pending[at] = _Pending(wanted, value.detach().clone() if is_copied else value)
            value.register_hook(lambda grad: self._arrived(at, grad))

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The gradient itself; none is asked for this way."""
        return grad

    def _count_near_zero(self, site: Site, value: Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            small = int((value.detach().abs() < NEAR_ZERO).sum())
        before, of = self.near_zero.get(site.layer or 0, (0, 0))
        self.near_zero[site.layer or 0] = before + small, of + value.numel()

    def _is_meant(self, site: Site) -> bool:
        return self.meant(site.layer, site.operator, site.module)

    # --- sums ---------------------------------------------------------------------------------------------------

    def start(self, rows: int, tokens: int) -> None:
        """A batch begins."""
        self.shape = rows, tokens
        self.relative, self.absolute = {}, {}
        self.forget()

    def copy_changed(self) -> bool:
        """True if the pass has changed values in place: from now on they are copied, and the pass must run again."""
        changed = {
            (site.module, site.operator) for late in self._pending.values() if late.changed for site in late.sites
        }
        self._copied |= changed
        return bool(changed)

    def forget(self) -> None:
        """Lets go of the values of the last pass, also of those whose gradient never came."""
        self._pending.clear()
        self.leaves.clear()

    def per_sequence(self) -> dict[Cell, tuple[np.ndarray, np.ndarray]]:
        """Relative and absolute sums of the batch, one element per sequence, or a single one where that is unknown."""
        return {
            cell: (relative.double().cpu().numpy(), self.absolute[cell].double().cpu().numpy())
            for cell, relative in self.relative.items()
        }

    def _arrived(self, at: int, grad: Tensor) -> None:
        pending = self._pending[at]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            is_grouped = pending.sites[0].module in self.grouped
            pieces = self._pieces(pending.value.detach(), grad.detach(), is_grouped=is_grouped)
            for site in pending.sites:
                self._add(site, pieces)

    def _pieces(self, value: Tensor, grad: Tensor, *, is_grouped: bool) -> list["_Piece"]:
        """The sequences of a large value some at a time: their squares need memory until they are summed up."""
        rows, tokens = self.shape
        if is_grouped:
            return [_Piece(value, grad, 0, tokens)]
        if value.ndim < 3 or len(value) != rows:
            return [_Piece(value, grad, rows, tokens)]
        some = max(1, _PIECE * rows // max(1, value.numel()))
        parts = zip(value.split(some), grad.split(some), strict=True)
        return [_Piece(value, grad, len(value), tokens) for value, grad in parts]

    def _add(self, site: Site, pieces: list["_Piece"]) -> None:
        assert site.layer is not None
        cell = site.layer, site.operator
        weighed = [piece.weigh(site.operator) for piece in pieces]
        relative, absolute = (torch.cat(parts) for parts in zip(*weighed, strict=True))
        self._add_channels(site, relative.sum(0), absolute.sum(0))
        for sums, part in ((self.relative, relative), (self.absolute, absolute)):
            by_sequence = part.sum(1, dtype=torch.float64)
            sums[cell] = _joined(sums[cell], by_sequence) if cell in sums else by_sequence

    def _add_channels(self, site: Site, relative: Tensor, absolute: Tensor) -> None:
        sums = self.channels.get(site.name)
        if sums is None:
            self.sites[site.name] = site
            self.channels[site.name] = ChannelSums(relative.double(), absolute.double())
        elif sums.relative.shape == relative.shape:
            sums.relative += relative
            sums.absolute += absolute


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Their sum by sequence; in all where one of them is not ordered by sequence."""
    return first + second if len(first) == len(second) else (first.sum() + second.sum()).view(1)


@dataclass(frozen=True)
class _Piece:
    """A value and its gradient, for all sequences of a batch or for some."""

    value: Tensor
    grad: Tensor
    rows: int
    """0 if they are not known"""
    tokens: int

    def weigh(self, operator: str) -> tuple[Tensor, Tensor]:
        """Sums of (value x gradient)^2 and of gradient^2, by sequence and channel."""
        value, grad = self.value, self.grad
        if grad.dtype not in (torch.float32, torch.float64):
            value, grad = value.float(), grad.float()
        weighed, plain = (value * grad).square_(), grad.square()
        if not self.rows:
            return _by_channel(weighed), _by_channel(plain)
        return self._by_row(weighed, operator), self._by_row(plain, operator)

    def _by_row(self, value: Tensor, operator: str) -> Tensor:
        """Sums by sequence and channel; by channel alone where sequences cannot be told apart."""
        rows = self.rows
        if value.ndim > 3 and len(value) == rows and operator in _BY_HEAD:
            return value.flatten(2).sum(2)
        if value.ndim > 3 and len(value) == rows and operator == "attention":
            return value.sum(-2).flatten(1)
        if value.ndim == 3 and operator in _BY_HEAD and len(value) % rows == 0:  # heads within the batch
            return value.flatten(1).sum(1).view(rows, -1)
        if value.ndim > 2 and len(value) == rows:
            return value.reshape(rows, -1, value.shape[-1]).sum(1)
        if value.ndim == 2 and len(value) == rows * self.tokens:
            return value.view(rows, self.tokens, -1).sum(1)
        return _by_channel(value)


def _by_channel(value: Tensor) -> Tensor:
    return value.reshape(-1, value.shape[-1] if value.ndim else 1).sum(0, keepdim=True)
