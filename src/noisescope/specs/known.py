"""Names that a question may use, known without the torch code behind them: operators and noise models.

A registry that gets another (`operators.register`, `noise.register`) adds its name here.
"""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ERROR_TYPES", "FORMATS", "GROUPS", "OPERATORS", "PLANNED", "SHARES", "STRATEGIES", "know"]

OPERATORS: list[str] = [
    "linear",
    "matmul",
    "bmm",
    "softmax",
    "silu",
    "gelu",
    "layer_norm",
    "rms_norm",
    "attention",
    "embedding",
    "residual",
]
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"norm": ("layer_norm", "rms_norm"), "layernorm": ("layer_norm", "rms_norm")}
)
"""one word for several operators"""
FORMATS = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "mxfp8", "mxfp6", "mxfp4", "nvfp4")
"""number formats, which are error types too"""
PLANNED = ("mxfp4", "nvfp4", "mxfp6", "mxfp8", "int8", "bf16")
"""what a precision plan chooses from, unless others are named"""
STRATEGIES = ("programme", "threshold")
"""of a precision plan"""
ERROR_TYPES: list[str] = [
    "relative_gaussian",
    "absolute_gaussian",
    "uniform",
    "systematic_bias",
    "relative_bias",
    "bit_flip",
    "stuck_at",
    *FORMATS,
]
SHARES = frozenset({"bit_flip", "stuck_at", *FORMATS})
"""error types whose scale is a probability or a share, which ends at 1"""


def know(names: list[str], name: str) -> None:
    """Adds a name, if it is new."""
    if name not in names:
        names.append(name)
