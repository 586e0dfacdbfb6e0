"""A device of another make: an observer that computes calls again in its own way, and gives that value instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from noisescope.devices.given import Arithmetic, Given, name_of
from noisescope.injection import Call, Watch

__all__ = ["Arithmetic", "Device", "Foreign", "Given", "Variant", "foreign", "wide"]


@dataclass(frozen=True)
class Variant:
    """One row: how a device computes some functions. A stateful one is made anew for every device."""

    name: str
    functions: tuple[str, ...]
    """plain names; empty for all"""
    make: Callable[[], Arithmetic]
    operators: tuple[str, ...] = field(default=())
    """what must be in a model for the row to say anything; empty for no condition"""


class Device:
    """Sees every call that is made in its `with` block; who derives from it says in `after` what comes out."""

    def __init__(self, model: nn.Module) -> None:
        self._watch = Watch(self, model, whole=True)

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    def wants(self, layer: object, operator: str, module: str, phase: str) -> bool:
        return phase == "forward"


class Foreign(Device):
    """Runs whatever is computed in its `with` block in other arithmetic; `calls` counts what it computed."""

    def __init__(self, variants: Sequence[Variant], model: nn.Module) -> None:
        super().__init__(model)
        self.calls = 0
        self.changed = 0
        """calls that came out with other bits than this machine's"""
        self._makers = [(row.functions, row.make()) for row in variants]

    def after(self, call: Call, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return value
        name = name_of(call)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for functions, arithmetic in self._makers:
                if functions and name not in functions:
                    continue
                found = arithmetic(Given(name, call, value))
                if found is None:
                    continue
                assert found.shape == value.shape, (name, found.shape, value.shape)
                found = found.to(value.dtype)
                self.calls += 1
                self.changed += not torch.equal(found, value)
                value = found
        return value


def foreign(variants: Sequence[Variant], model: Any) -> Foreign:
    """A device that computes in all of these ways."""
    return Foreign(variants, model)


def wide(given: Tensor) -> Tensor:
    """In the dtype that a device accumulates in."""
    return given if given.dtype == torch.float64 else given.float()
