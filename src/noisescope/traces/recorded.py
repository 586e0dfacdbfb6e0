"""A trace: one recorded run on one device, in memory. `save` and `load` are those of `file`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from .heads import SiteHead, TraceHead

__all__ = ["Trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """What `trace` recorded. Rows of `sketch` and `sample` belong to `head.sites`, in the order of their first call."""

    head: TraceHead
    sketch: Tensor = field(repr=False)
    """sites x buckets, float32"""
    sample: Tensor = field(repr=False)
    """sites x slots, float32 or float64"""
    positions: tuple[Tensor, ...] = field(repr=False)
    """slots x 2, call and element; which of these a sample was taken at its site says"""
    full: Mapping[int, Callable[[], list[Tensor]]] = field(default_factory=dict, repr=False)
    """number of a site -> the values of its calls, where they were kept"""
    hidden: Mapping[int, Callable[[], dict[str, Tensor]]] = field(default_factory=dict, repr=False)
    """number of a forward pass -> its hidden states, where they were kept"""
    ids: tuple[Mapping[str, Tensor], ...] = field(default=(), repr=False)
    """token ids and masks of each batch, by the name of the model's argument"""
    name: str = ""
    """of the file"""

    @property
    def sites(self) -> tuple[SiteHead, ...]:
        """In the order of their first call."""
        return self.head.sites

    @cached_property
    def digest(self) -> str:
        """Of what was recorded: 16 hexadecimal digits."""
        from .file import digest_of

        return digest_of(self)

    def save(self, path: str | Path) -> Path:
        """Writes the one file; where it is."""
        from .file import save_trace

        return save_trace(self, path)

    def __str__(self) -> str:
        where = self.head.environment
        shapes = ", ".join("x".join(map(str, shape)) for shape in self.head.passes[:4])
        return (
            f"{self.head.model}, {self.head.layers} layers, {where.dtype} on {where.device}: "
            f"{len(self.sites)} sites, passes of {shapes} tokens"
        )
