"""The parameters of a model by name and layer, and a block in which they can be differentiated."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import ModelError
from ..sites import Layout
from ..specs import Layer

__all__ = ["OTHER", "Parameters", "differentiating"]

OTHER = "other"
"""the layer of parameters that several blocks share, or that have no plain role outside the blocks"""


@dataclass(frozen=True)
class Parameters:
    """Every floating-point parameter once, with its name in the bare model and its layer.

    A weight tied between embedding and head is one parameter: it stands under `embed`, and `head` has none of its own.
    """

    names: tuple[str, ...]
    tensors: tuple[nn.Parameter, ...]
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, model: nn.Module, *, layout: Layout | None = None, blocks: str | None = None) -> "Parameters":
        """The parameters of a model, in the order of its modules."""
        owners = _owners(layout or Layout.of(model, blocks=blocks))
        if not owners:
            raise ModelError(
                f"{type(model).__name__}: no floating-point parameters, so there is nothing to differentiate"
            )
        if unloaded := next((names[0][0] for tensor, names in owners.items() if tensor.is_meta), None):
            raise ModelError(f"{unloaded}: is on the meta device, expected a model with its weights loaded")
        named = [_home(found) for found in owners.values()]
        return cls(tuple(name for name, _ in named), tuple(owners), tuple(layer for _, layer in named))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each."""
        return tuple(tensor.numel() for tensor in self.tensors)


def _owners(layout: Layout) -> dict[nn.Parameter, list[tuple[str, Layer]]]:
    """Each parameter, with the names and layers under which modules hold it."""
    by_path = {path: module for module, path in layout.paths.items()}
    found: dict[nn.Parameter, list[tuple[str, Layer]]] = {}
    for module, path in layout.paths.items():
        for name, tensor in module.named_parameters(recurse=False):
            if tensor.is_floating_point():
                full = f"{path}.{name}" if path else name
                found.setdefault(tensor, []).append((full, _layer(module, path, layout, by_path)))
    return found


def _layer(module: nn.Module, path: str, layout: Layout, by_path: dict[str, nn.Module]) -> Layer:
    """A block's index, or the role of the nearest module around that has one."""
    if module in layout.home:
        index = layout.home[module]
        return OTHER if index is None else index
    while path and by_path[path] not in layout.layer:
        path = path.rpartition(".")[0]
    return layout.layer.get(by_path[path], OTHER)


def _home(owners: list[tuple[str, Layer]]) -> tuple[str, Layer]:
    """Name and layer of a parameter that may have several owners."""
    layers = {layer for _, layer in owners}
    if len(layers) > 1:
        return next((owner for owner in owners if owner[1] == "embed"), (owners[0][0], OTHER))
    return owners[0]


@contextmanager
def differentiating(model: nn.Module, parameters: Parameters) -> Iterator[None]:
    """While the block lasts every parameter has a gradient and nothing is dropped out.

    Afterwards, also after an exception, training and requires_grad flags and torch's random state are as they were.
    Take gradients with `torch.autograd.grad`: the `.grad` fields are the user's.
    """
    flags = [(tensor, tensor.requires_grad) for tensor in parameters.tensors]
    modes = [(module, module.training) for module in model.modules()]
    devices = {tensor.device.index for tensor in parameters.tensors if tensor.device.type == "cuda"}
    with ExitStack() as after:
        after.enter_context(torch.random.fork_rng(devices=sorted(devices)))
        after.enter_context(torch.inference_mode(False))
        after.enter_context(torch.enable_grad())
        after.callback(_restore, flags, modes)
        for module, _ in modes:
            module.training = False
        for tensor, _ in flags:
            tensor.requires_grad_()
        yield


def _restore(flags: list[tuple[nn.Parameter, bool]], modes: list[tuple[nn.Module, bool]]) -> None:
    for tensor, requires_grad in flags:
        tensor.requires_grad_(requires_grad)
    for module, training in modes:
        module.training = training
