"""One call, or one model, as an emulated device computes it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from families import build
from noisescope.devices import EmulatedDevice
from noisescope.sites import Layout

__all__ = ["DTYPES", "bits", "by_device", "lively", "numbers"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Block(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.call = call

    def forward(self, *given: Tensor) -> Tensor:
        return self.call(*given)


class _OneCall(nn.Module):
    """A block that computes one call."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(call)])

    def forward(self, *given: Tensor) -> Tensor:
        return self.blocks[0](*given)


def by_device(name: str, call: Callable[..., Tensor], *given: Tensor, seed: int = 0) -> tuple[Tensor, EmulatedDevice]:
    """What the device gives for `call(*given)`, and the device."""
    model = _OneCall(call)
    with EmulatedDevice(model, name, seed=seed, layout=Layout.of(model)) as device, torch.no_grad():
        return model(*given), device


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lively(family: str, dtype: torch.dtype = torch.float32, *, attn: str | None = None) -> nn.Module:
    """A model whose weights are as large as trained ones, and whose gains are not 1."""
    model = build(family, attn=attn)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.2
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype)


def bits(value: Tensor) -> Tensor:
    return value.detach().contiguous().view(torch.uint8)
