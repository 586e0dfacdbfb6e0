"""The registry of emulated devices: one row each, with what it computes otherwise than this machine.

    row = DEVICES["tf32"]
    row.description, row.functions, row.honest

A row is honest if a healthy device may compute so: another order, another formula, as many bits. Else it is less
precise by design, as a mode that people choose, or get unasked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from ..errors import InputError
from ..faults import FAULTS
from .given import Arithmetic

__all__ = ["DEVICES", "FLOATS", "NARROW", "PRODUCTS", "SDPA", "Device", "register"]

NARROW = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *NARROW)
PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "grouped_mm")
"""all spellings of a product, by the plain names of their functions"""
SDPA = "scaled_dot_product_attention"
_OPERATORS = {"mm": "matmul", "addmm": "matmul", "einsum": "matmul", "baddbmm": "bmm", "grouped_mm": "linear"}
"""plain name -> the operator that its sites are named by"""


@dataclass(frozen=True)
class Device:
    """One row: how a device computes some functions, from the same arguments."""

    name: str
    description: str
    """one sentence: what this device does"""
    functions: tuple[str, ...]
    """plain names of what it changes, "module rms_norm" for a hand-written operator; empty for whatever is computed"""
    make: Callable[[torch.Generator], Arithmetic]
    """the arithmetic of one such device, with dice of its own"""
    honest: bool
    """True if a healthy device may compute so"""
    dtypes: tuple[torch.dtype, ...] = FLOATS
    """of the values that it changes; in others it is inert"""

    def changes(self, name: str, dtype: torch.dtype) -> bool:
        """True if it computes this function, with a value of this dtype, in its own way."""
        return dtype in self.dtypes and (not self.functions or name in self.functions)

    @property
    def opens_attention(self) -> bool:
        """True if it computes the steps of a fused attention kernel in its own way, not the kernel as a whole."""
        return SDPA not in self.functions and bool({"matmul", "softmax"} & set(self.functions))

    def is_at(self, operators: Iterable[str]) -> bool:
        """True if it changes one of these operators; a product may be spelled in many ways."""
        mine = {name.removeprefix("module ") for name in self.functions}
        mine |= {_OPERATORS[name] for name in mine if name in _OPERATORS}
        mine |= {"attention"} if SDPA in mine or self.opens_attention else set()
        return not self.functions or not mine.isdisjoint(operators)


DEVICES: dict[str, Device] = {}


def register(device: Device) -> Device:
    """Adds a row; a name can be taken only once, and by no kind of fault."""
    if device.name in DEVICES or device.name in FAULTS:
        what = "device" if device.name in DEVICES else "fault"
        raise InputError(f'device "{device.name}": there is a {what} of that name already')
    DEVICES[device.name] = device
    return device
