"""Number formats: a grid, the scale of its blocks, and how a tensor is put into them.

    parse_format("mxfp4").round(weight)                    # blocks of 32 along the last axis
    parse_format("int4:group=32,asymmetric").round(weight, axis=0)

    name       element  block                      scale         bits with scales
    bf16 fp16  -        -                          -             16
    fp8_e4m3   E4M3     channel                    float32       8, and 32 a channel
    fp8_e5m2   E5M2     channel                    float32       the same
    int8       -128..127 channel                   float32       the same
    int4       -8..7    128                        bfloat16      4.125
    mxfp8      E4M3     32                         E8M0          8.25
    mxfp6      E2M3     32                         E8M0          6.25
    mxfp4      E2M1     32                         E8M0          4.25
    nvfp4      E2M1     16                         E4M3, and one of float32 for the tensor    4.5

Blocks lie along the reduction axis, over which a product sums: the input dimension of a weight, the last of an
activation. A block that does not divide it leaves a shorter one at the end. `channel` is one block for each position of
the other axes: an output channel of a weight, a token of an activation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import InputError, quoted, unknown_name
from ...keys import Key
from ..drawing import Draw
from .grids import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, INT4, INT8, Grid
from .scales import RULES, SCALE_BITS, Blocks, Scaled

__all__ = ["FORMATS", "Format", "parse_format"]

_ELEMENTS: Mapping[str, Grid] = {"e2m3": E2M3, "e3m2": E3M2, "e4m3": E4M3, "e5m2": E5M2}
_SWITCHES = ("tensor", "channel", "asymmetric", "stochastic")


@dataclass(frozen=True)
class Format:
    """A number format; `str` gives the text that `parse_format` reads."""

    name: str
    grid: Grid
    rule: str
    block: int | str
    """elements of a block, or `channel` or `tensor`"""
    rounding: str = "nearest"
    element: str = ""
    """of an MX format that is not in its usual one"""

    def round(self, value: Tensor, *, axis: int = -1, key: Key | None = None) -> Tensor:
        """The tensor as this format holds it, in its own dtype and shape; the argument is not changed.

        `axis` is the one that a product sums over. Arithmetic is in float32 (float64 for float64), rounded once to the
        tensor's dtype. Stochastic rounding draws from `key`.
        """
        if not value.is_floating_point():
            raise InputError(f"{self}: cannot round {str(value.dtype).removeprefix('torch.')}, expected floats")
        if not value.numel():
            return value.clone()
        if not value.ndim:
            return self.round(value.view(1), key=key).view(())
        blocks, scaled = self._scaled(value, axis)
        if self.rounding == "nearest":
            rounded = self.grid.nearest(scaled.values, scaled.zero)
        else:
            rounded = self.grid.stochastic(scaled.values, _uniform(scaled.values, key, str(self)), scaled.zero)
        return blocks.back(scaled.back(rounded)).to(value.dtype)

    def clipped_share(self, value: Tensor, *, axis: int = -1) -> float:
        """Share of the elements that would be rounded to a number beyond the ends of the grid, and are cut to them."""
        if not value.numel():
            return 0.0
        if not value.ndim:
            return self.clipped_share(value.view(1))
        _, scaled = self._scaled(value, axis)
        return float(self.grid.exceeded(scaled.values, scaled.zero).sum()) / value.numel()

    def _scaled(self, value: Tensor, axis: int) -> "tuple[_Rows, Scaled]":
        wide = value.detach() if value.dtype in (torch.float32, torch.float64) else value.detach().float()
        blocks = _Rows.of(wide, axis, self.block)
        return blocks, RULES[self.rule](Blocks(blocks.rows, self.grid, self._scale_dtype))

    def bits(self, shape: torch.Size | tuple[int, ...], *, axis: int = -1) -> float:
        """Bits per element of a tensor of that shape, scales counted, but for those of which there is one a tensor."""
        along = shape[axis] if shape else 1
        if self.block == "tensor" or self.rule == "none" or not along:
            return float(self.grid.bits)
        blocks = 1 if self.block == "channel" else -(-along // int(self.block))
        return self.grid.bits + blocks * self._block_bits / along

    @property
    def _block_bits(self) -> int:
        """What is stored for each block beside its elements."""
        scale = SCALE_BITS.get(self.rule, torch.finfo(self._scale_dtype).bits)
        return scale + (self.grid.bits if self.rule == "least" else 0)

    @property
    def _scale_dtype(self) -> torch.dtype:
        """Where one is stored for each group of integers, two bytes have to do."""
        grouped = isinstance(self.block, int) and self.grid.mantissa_bits is None
        return torch.bfloat16 if grouped else torch.float32

    @property
    def exact_dtype(self) -> torch.dtype | None:
        """The dtype whose values this format holds without a change, if it is one."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)

    def __str__(self) -> str:
        usual = FORMATS[self.name]
        options = [self.element] if self.element else []
        if self.block != usual.block:
            options.append(f"group={self.block}" if isinstance(self.block, int) else self.block)
        options += ["asymmetric"] if self.rule == "least" else []
        options += ["stochastic"] if self.rounding == "stochastic" else []
        return f"{self.name}:{','.join(options)}" if options else self.name


FORMATS: Mapping[str, Format] = {
    row.name: row
    for row in (
        Format("bf16", BF16, "none", "tensor"),
        Format("fp16", FP16, "none", "tensor"),
        Format("fp8_e4m3", E4M3, "range", "channel"),
        Format("fp8_e5m2", E5M2, "range", "channel"),
        Format("int8", INT8, "range", "channel"),
        Format("int4", INT4, "range", 128),
        Format("mxfp8", E4M3, "shared", 32),
        Format("mxfp6", E2M3, "shared", 32),
        Format("mxfp4", E2M1, "shared", 32),
        Format("nvfp4", E2M1, "two levels", 16),
    )
}
"""name -> the format as it is usually stored"""
_OTHER_ELEMENTS = {"mxfp8": ("e4m3", "e5m2"), "mxfp6": ("e2m3", "e3m2")}


def parse_format(text: str | Format) -> Format:
    """A format by its name and options.

    `tensor`, `channel` and `group=N` say which elements share a scale, `asymmetric` gives integers a zero point,
    `stochastic` rounds at random; `mxfp8:e5m2` and `mxfp6:e3m2` have the other element of the standard.

    >>> str(parse_format("int4:group=32"))
    'int4:group=32'
    >>> parse_format("nvfp4").bits((64, 128))
    4.5
    """
    if isinstance(text, Format):
        return text
    if not isinstance(text, str):
        raise InputError(f"format: got {quoted(text)}, expected a name such as {' '.join(FORMATS)}")
    name, _, given = text.strip().partition(":")
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    found = FORMATS[name]
    for option in filter(None, (part.strip() for part in given.split(","))):
        found = _with(found, option)
    return found


def _with(given: Format, option: str) -> Format:
    choices: Sequence[str] = _OTHER_ELEMENTS.get(given.name, ())
    if option in choices:
        return replace(given, grid=_ELEMENTS[option], element="" if option == choices[0] else option)
    if option == "stochastic":
        return replace(given, rounding="stochastic")
    if given.rule not in ("range", "least"):
        raise InputError(f"{given.name}: unknown option {quoted(option)} ({' '.join((*choices, 'stochastic'))})")
    if option in ("tensor", "channel"):
        return replace(given, block=option)
    if option == "asymmetric" and given.grid.mantissa_bits is None:
        return replace(given, rule="least")
    if option.startswith("group="):
        size = option.removeprefix("group=")
        if not size.isdecimal() or not 0 < int(size) <= 2**20:
            raise InputError(f"{given.name}: got group {quoted(size)}, expected a number of elements from 1 to 2^20")
        return replace(given, block=int(size))
    valid = [name for name in _SWITCHES if name != "asymmetric" or given.grid.mantissa_bits is None]
    raise InputError(f"{given.name}: unknown option {quoted(option)} ({' '.join((*valid, 'group=N'))})")


@dataclass(frozen=True)
class _Rows:
    """A tensor as rows of blocks, and the way back."""

    rows: Tensor
    shape: torch.Size
    """with the reduction axis last"""
    axis: int
    padded: int

    @classmethod
    def of(cls, value: Tensor, axis: int, block: int | str) -> "_Rows":
        moved = value.movedim(axis, -1)
        if block == "tensor":
            return cls(moved.reshape(1, -1), moved.shape, axis, 0)
        along = moved.shape[-1]
        if block == "channel" or int(block) >= along:
            return cls(moved.reshape(-1, along), moved.shape, axis, 0)
        missing = -along % int(block)
        filled = pad(moved, (0, missing)) if missing else moved  # zeros move no largest abs, and no least below 0
        return cls(filled.reshape(-1, int(block)), moved.shape, axis, missing)

    def back(self, rows: Tensor) -> Tensor:
        """Such rows, in the order of the tensor."""
        whole = rows.reshape(prod(self.shape[:-1]), self.shape[-1] + self.padded)
        kept = whole[:, : self.shape[-1]].reshape(self.shape)
        return kept.movedim(-1, self.axis)


def _uniform(like: Tensor, key: Key | None, name: str) -> Tensor:
    """Numbers from [0, 1)."""
    if key is None:
        raise InputError(f"{name}: stochastic rounding needs a key to draw from")
    return Draw(key, like.device).uniform(like).add_(1.0).mul_(0.5).clamp_(max=1 - torch.finfo(like.dtype).eps / 2)
