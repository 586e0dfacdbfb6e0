"""Models of one block that makes one call, so that a fault's own arithmetic can be seen alone."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisescope.faults import FaultSimulator

ROWS, LENGTH, WIDTH = 12, 24, 200


class OneCall(nn.Module):
    """A block that returns what `call` gives for the hidden state."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(call)])

    def forward(self, hidden: Tensor) -> Tensor:
        return self.blocks[0](hidden)


class _Block(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.call = call

    def forward(self, hidden: Tensor) -> Tensor:
        return self.call(self.inner(hidden))


def product(dtype: torch.dtype, *, seed: int = 0) -> tuple[OneCall, Tensor, Tensor]:
    """A model of one linear, its input, and its output in float32, before it is cast."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(WIDTH, LENGTH, generator=generator).to(dtype)
    hidden = torch.randn(2, ROWS // 2, LENGTH, generator=generator).to(dtype)
    wide = F.linear(hidden.float(), weight.float())
    return OneCall(lambda value: F.linear(value, weight)), hidden, wide


def broken(
    model: nn.Module, hidden: Tensor, kind: str, magnitude: float | None = None, *, site: str = "0", **more: Any
):
    """What the model gives with a fault in it, and the simulator."""
    with FaultSimulator(model, site, kind, magnitude, inputs={"hidden": hidden}, **more) as fault, torch.no_grad():
        return model(hidden), fault


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Bit by bit, so that 0 and -0 differ."""
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )
