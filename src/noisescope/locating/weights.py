"""Weights in the device's memory against the file that they came from, tensor by tensor."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..errors import ModelError
from ..sites import Layout
from ..specs import Layer

__all__ = ["ChangedWeight", "WeightCheck", "compare_weights"]


@dataclass(frozen=True)
class ChangedWeight:
    """A parameter or buffer that is not what the file holds."""

    name: str
    layer: Layer | None
    elements: int
    changed: int
    largest: float
    """error"""


@dataclass(frozen=True)
class WeightCheck:
    """What a comparison found."""

    checked: int
    unknown: tuple[str, ...]
    """tensors that the file does not hold under their name and shape"""
    changed: tuple[ChangedWeight, ...]


def compare_weights(model: nn.Module, layout: Layout, checkpoint: str | Path) -> WeightCheck:
    """Every parameter and stored buffer against the safetensors of a directory, or one file, a tensor at a time."""
    layers = _layers(model, layout)
    checked, unknown, changed = 0, [], []
    with torch.no_grad(), ExitStack() as stack:
        files = [_opened(file, stack) for file in _files(Path(checkpoint))]
        where = {key: file for file in files for key in file.keys()}  # noqa: SIM118 - not a dict
        for name, parameter in _stored(model):
            stored = where[name].get_tensor(name) if name in where else None
            if stored is None or stored.shape != parameter.shape:
                unknown.append(name)
                continue
            checked += 1
            here, there = parameter.detach().cpu(), stored.to(parameter.dtype)
            differs = (here != there) & ~(here.isnan() & there.isnan())
            if bool(differs.any()):
                largest = float((here.double() - there.double()).abs().nan_to_num(torch.inf).max())
                count = int(differs.sum())
                changed.append(ChangedWeight(name, layers.get(name), parameter.numel(), count, largest))
    return WeightCheck(checked, tuple(unknown), tuple(changed))


def _stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and the buffers that a file holds, each tensor once."""
    seen = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
        if not found:
            raise ModelError(f"{path}: holds no .safetensors file to compare the weights with")
        yield from found
    else:
        yield path


def _opened(file: Path, stack: ExitStack):  # type: ignore[no-untyped-def]  # safetensors has no types
    try:
        return stack.enter_context(safe_open(str(file), framework="pt"))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot be read as safetensors ({error})") from None


def _layers(model: nn.Module, layout: Layout) -> dict[str, Layer]:
    """Tensor -> the layer it belongs to."""
    found: dict[str, Layer] = {}
    by_path = {path: module for module, path in layout.paths.items()}
    for name in model.state_dict():
        module = by_path.get(name.rpartition(".")[0])
        home = layout.home.get(module) if module is not None else None
        layer = home if home is not None else layout.layer.get(module) if module is not None else None
        if layer is not None:
            found[name] = layer
    return found
