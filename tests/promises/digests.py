"""Fingerprints, by bit pattern, of everything that an injection must leave as it found it.

before = digest(model)
...
assert digest(model) == before      # a dict, so that pytest shows which part changed
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

Digest = dict[str, Any]


def bits(value: Tensor | None) -> str:
    """The bit pattern of a tensor with its dtype and shape: -0.0 and 0.0 differ, equal NaNs do not."""
    if value is None:
        return "none"
    flat = value.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(raw).hexdigest()[:16]}"


def digest(model: nn.Module) -> Digest:
    """All of it: the model and the process around it."""
    return {**digest_model(model), **digest_process()}


def digest_model(model: nn.Module) -> Digest:
    """Weights, gradients, buffers, flags, and what hangs on each module."""
    found: Digest = {}
    for name, parameter in model.named_parameters():
        found[f"weight {name}"] = (bits(parameter), parameter.requires_grad, bits(parameter.grad), id(parameter))
        found[f"tensor hooks {name}"] = list(parameter._backward_hooks or {})
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = (bits(buffer), id(buffer))
    for path, module in model.named_modules():
        found[f"module {path}"] = (module.training, type(module).__name__, sorted(vars(module)))
        found[f"hooks {path}"] = hooks_of(module)
    return found


def hooks_of(module: nn.Module) -> dict[str, list[Any]]:
    """Every hook dictionary of a module that is not empty: names in order, with what hangs there."""
    return {
        name: [(number, id(hook)) for number, hook in entries.items()]
        for name, entries in vars(module).items()
        if "hooks" in name and isinstance(entries, dict) and entries
    }


def digest_process() -> Digest:
    """Random states, torch's process-wide hooks, this thread's function modes, and its gradient switches."""
    return {
        "random": {
            "torch": bits(torch.get_rng_state()),
            "numpy": repr(np.random.get_state()),
            "python": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        },
        "global hooks": {name: list(entries.items()) for name, entries in _global_hooks().items()},
        "function modes": [id(mode) for mode in _get_current_function_mode_stack()],
        "switches": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch._C._is_torch_function_enabled(),
        ),
    }


def _global_hooks() -> dict[str, dict[int, Any]]:
    return {
        name: entries
        for name, entries in vars(torch_module).items()
        if name.startswith("_global_") and isinstance(entries, dict)
    }


@contextlib.contextmanager
def quarantine() -> Iterator[None]:
    """What a mutant leaves behind in the process is taken away, so that the next test starts clean."""
    kept = {name: dict(entries) for name, entries in _global_hooks().items()}
    modes = list(_get_current_function_mode_stack())
    try:
        yield
    finally:
        for name, entries in _global_hooks().items():
            entries.clear()
            entries.update(kept[name])
        while _get_current_function_mode_stack():
            _pop_mode()
        for mode in modes:
            _push_mode(mode)
