"""Which model, which tokens, which machine: what two traces must share, and what they may differ in."""

import platform
from collections import Counter
from contextlib import AbstractContextManager
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .. import __version__
from ..injection import forwards_replaced
from .bits import bits_of
from .heads import Environment, InputHead

__all__ = ["Witness", "dtype_of", "environment_of", "structure_of"]


def structure_of(model: nn.Module) -> str:
    """A digest of module paths and the shapes of their parameters: the same in every dtype and on every device."""
    digest = blake2b(digest_size=8)
    for name, parameter in sorted(model.named_parameters(remove_duplicate=False)):
        digest.update(f"{name} {tuple(parameter.shape)}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def environment_of(model: nn.Module, emulated: tuple[str, ...] = ()) -> Environment:
    """The machine at hand, without host, clock or path."""
    device = next(model.parameters(), torch.zeros(())).device
    return Environment(
        device=device.type,
        accelerator=_accelerator(device),
        dtype=str(dtype_of(model)).removeprefix("torch."),
        attention=getattr(getattr(model, "config", None), "_attn_implementation", None),
        emulated=emulated,
        threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        flushes_denormals=not bool(torch.tensor([2.0**-126], device="cpu") * 0.5),
        machine=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        system=platform.system(),
        torch=str(torch.__version__),
        transformers=_version("transformers"),
        python=platform.python_version(),
        numpy=version("numpy"),
        noisescope=__version__,
    )


def dtype_of(model: nn.Module) -> torch.dtype:
    """Of most of its parameters."""
    sizes: Counter[torch.dtype] = Counter()
    for tensor in model.parameters():
        if tensor.is_floating_point():
            sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0] if sizes else torch.float32


def _accelerator(device: torch.device) -> str | None:
    """What the card calls itself; None for a CPU, or if it does not say."""
    if device.type in ("cpu", "meta"):
        return None
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name is not None else None


class Witness:
    """Sees what a model is called with: a digest of all whole numbers, token ids and masks, and of all shapes.

    Other numbers are noted by themselves, since another device may have rounded them.
    """

    def __init__(self) -> None:
        self.passes: list[tuple[int, ...]] = []
        """shape of the first tensor of each call"""
        self.inputs: list[InputHead] = []
        """tensors that are not whole numbers"""
        self._digest = blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """Of all calls so far."""
        return self._digest.hexdigest()

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Sees the calls that are made inside."""
        return forwards_replaced({model: self._see})

    def _see(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        given = [leaf for leaf in tree_leaves((args, sorted(kwargs.items()))) if isinstance(leaf, Tensor)]
        self.passes.append(tuple(given[0].shape) if given else ())
        with torch._C.DisableTorchFunction():
            for tensor in given:
                self._digest.update(repr(tuple(tensor.shape)).encode())
                if tensor.is_floating_point() or tensor.is_complex():
                    self.inputs.append(self._noted(tensor.detach()))
                else:
                    self._digest.update(tensor.detach().cpu().long().contiguous().numpy().tobytes())
        return forward(*args, **kwargs)

    def _noted(self, tensor: Tensor) -> InputHead:
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return InputHead(len(self.passes) - 1, dtype, tuple(tensor.shape), bits_of([plain]))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
