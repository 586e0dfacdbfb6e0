"""A decoder of a few lines whose attributes can be called anything and registered in any order: only numbers count."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, INNER, VOCAB, LAYERS = 16, 24, 40, 3

PARTS = ("before", "q", "k", "v", "o", "after", "gate", "up", "down")
"""of a block, in the order of their use"""
PLAIN = {name: name for name in ("tokens", "blocks", "last", "head", *PARTS)}


class RootMeanSquareNorm(nn.Module):
    """Written by hand, as most models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scale * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps))


class Block(nn.Module):
    def __init__(self, names: Mapping[str, str], order: Sequence[str], number: int) -> None:
        super().__init__()
        self.names = names
        for part in order:
            self.add_module(names[part], _part(part, 100 * (number + 1) + PARTS.index(part)))

    def _the(self, part: str) -> nn.Module:
        return getattr(self, self.names[part])

    def forward(self, hidden: Tensor) -> Tensor:
        x = self._the("before")(hidden)
        q, k, v = (self._the(part)(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in "qkv")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        hidden = hidden + self._the("o")(mixed)
        x = self._the("after")(hidden)
        return hidden + self._the("down")(F.silu(self._the("gate")(x)) * self._the("up")(x))


class Decoder(nn.Module):
    def __init__(self, names: Mapping[str, str] = PLAIN, *, backwards: bool = False) -> None:
        super().__init__()
        self.names = names
        order = PARTS[::-1] if backwards else PARTS
        rows = {
            "tokens": _drawn(nn.Embedding(VOCAB, WIDTH), 1),
            "blocks": nn.ModuleList(Block(names, order, number) for number in range(LAYERS)),
            "last": RootMeanSquareNorm(),
            "head": _drawn(nn.Linear(WIDTH, VOCAB, bias=False), 2),
        }
        for name in reversed(rows) if backwards else rows:
            self.add_module(names[name], rows[name])
        self.eval()

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        hidden = getattr(self, self.names["tokens"])(input_ids)
        for block in getattr(self, self.names["blocks"]):
            hidden = block(hidden)
        return (getattr(self, self.names["head"])(getattr(self, self.names["last"])(hidden)),)


class Wrapped(nn.Module):
    """A model around another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.something = nn.Identity()
        self.wrapped = inner
        self.eval()

    def forward(self, **inputs: Tensor) -> tuple[Tensor]:
        return self.wrapped(**inputs)


def inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(VOCAB, (2, 10), generator=torch.Generator().manual_seed(0))}


def _part(part: str, seed: int) -> nn.Module:
    if part in ("before", "after"):
        return RootMeanSquareNorm()
    shape = {"gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}.get(part, (WIDTH, WIDTH))
    return _drawn(nn.Linear(*shape, bias=False), seed)


def _drawn(module: nn.Module, seed: int) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(seed))
    return module
