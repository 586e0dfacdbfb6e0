"""The first place where a value stops being finite: where a NaN or an infinity comes from."""

import torch
from torch import Tensor, nn

from ..errors import NonFinite
from ..injection import Watch
from ..sites import Layout, Site
from ..specs import Layer, Phase

__all__ = ["first_non_finite", "is_finite", "non_finite"]


def is_finite(value: Tensor) -> bool:
    """True if no value is NaN or infinite; without a copy, for logits are the largest tensor of a pass."""
    return not value.numel() or all(bool(end.isfinite()) for end in value.detach().aminmax())


class _Looking:
    """An observer that stops looking once it has seen a value that is not finite."""

    def __init__(self) -> None:
        self.found: Site | None = None

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        return phase == "forward"

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        if self.found is None and value.is_floating_point():
            with torch._C.DisableTorchFunction():
                if not is_finite(value):
                    self.found = sites[-1]
        return value

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        return grad


def first_non_finite(
    model: nn.Module, inputs: dict[str, object], *, layout: Layout | None = None, blocks: str | None = None
) -> Site | None:
    """The first site of a forward pass whose value has a NaN or an infinity in it; None if all are finite.

    Attention is computed in steps. Use it inside `inject` to ask the same of a disturbed model.
    """
    looking = _Looking()
    with Watch(looking, model, layout=layout, blocks=blocks, in_steps=True), torch.no_grad():
        model(**inputs)
    return looking.found


def non_finite(who: str, model: nn.Module, inputs: dict[str, object], *, layout: Layout) -> NonFinite:
    """The error for a model that gave non-finite logits for these inputs; it names the first site."""
    site = first_non_finite(model, inputs, layout=layout)
    where = f"the first value that is not finite is at {site.name}" if site else "all operators' values are finite"
    return NonFinite(f"{who} gives non-finite logits; {where}")
