"""One call as a device sees it, and the type of what a device computes from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from ..faults.wide import widely
from ..injection import Call, plain_name

__all__ = ["Arithmetic", "Given", "name_of"]

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Given:
    """One call, as a device sees it."""

    name: str
    """the function's plain name, or "module gelu" for a hand-written operator"""
    call: Call
    value: Tensor
    """what this machine gives"""

    def named(self, *names: str) -> dict[str, Any]:
        """All arguments by name, those by position first."""
        return dict(zip(names, self.call.args, strict=False)) | self.call.kwargs

    def widely(self, function: Callable[..., Found]) -> Found:
        """What the function gives for the call's arguments in float32, as hardware accumulates."""
        return widely(self.call, function, self.value)


Arithmetic: TypeAlias = Callable[[Given], Tensor | None]
"""what the device gives, before it is cast; None for a call that it computes as everybody does"""


def name_of(call: Call) -> str:
    """What rows call this call: "softmax", or "module rms_norm" for a hand-written operator."""
    return f"module {call.operator}" if call.is_module else plain_name(call.function) or ""
