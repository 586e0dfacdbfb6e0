"""The observer of a traced run: folds every value at the wanted sites, and changes none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..capturing.sequences import Masks, grouped_modules, real_tokens
from ..injection import Watch
from ..sites import Layout, Site
from ..specs import Layer, Phase
from .sketch import Sketcher
from .tally import SiteTally

__all__ = ["Recorder", "Row", "Rows", "Wanted"]

_BY_KEY = ("matmul", "bmm", "softmax")
"""operators whose last dimension may be tokens"""
Wanted = Callable[[str, str, Phase], bool]
"""(module path, operator, phase) -> whether to record it"""


@dataclass
class Row:
    """One site of one stage, while it is recorded."""

    site: Site
    stage: str
    part: int
    """of an operator's gradients: the operand"""
    dtype: torch.dtype
    shape: tuple[int, ...]
    """of the first call"""
    tally: SiteTally
    full: list[Tensor]

    @property
    def key(self) -> tuple[str, str]:
        """Stage and name."""
        return self.stage, self.name

    @property
    def name(self) -> str:
        """The site's name, and which of its gradients."""
        return f"{self.site.name}.{self.part}" if self.part else self.site.name


Rows = dict[tuple[str, str], Row]
"""by stage and name, in the order of their first call"""


class Recorder:
    """Records values in the order of their first call.

    Sites that a fused kernel hides stay hidden: the kernel is recorded as it runs. Padding is left out where anybody
    can tell which rows of a value it is.
    """

    def __init__(self, layout: Layout | None, wanted: Wanted, *, seed: int = 0, full: bool = False) -> None:
        self._rows: Rows = {}
        self.stage = "prefill"
        self._wanted, self._seed, self._full = wanted, seed, full
        self._masks = Masks()
        self._grouped = grouped_modules(layout) if layout is not None else frozenset()
        self._sketchers: dict[torch.device, Sketcher] = {}
        self.watch = Watch(self, layout=layout, whole=True)

    def __enter__(self) -> "Recorder":
        self.watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._masks = Masks()
        self.watch.__exit__(*error)

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True where the selection points."""
        return self._wanted(module, operator, phase)

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value itself, recorded at the first of its sites."""
        if value.is_floating_point() and not self.watch.scope.recomputing:
            self._record(sites[0], value, 0)
        return value

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The gradient itself, recorded."""
        if grad.is_floating_point():
            self._record(site, grad, part)
        return grad

    def taken(self) -> Rows:
        """What was recorded, which is the caller's alone from now on.

        A recorder and its watch refer to each other, and go when the garbage collector comes by; values need not wait.
        """
        rows, self._rows = self._rows, {}
        self._sketchers.clear()
        return rows

    def enter(self, stage: str) -> None:
        """What follows belongs to this stage."""
        self.stage = stage

    def record_output(self, logits: Tensor) -> None:
        """Records what the model gave in the end, of a device that shows nothing else."""
        self._record(Site("head", "logits", "", 0), logits, 0)

    def _record(self, site: Site, value: Tensor, part: int) -> None:
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            value = value.detach()
            if site.phase == "forward" and self.watch.active:
                scope = self.watch.scope
                by_key = site.operator in _BY_KEY
                real = real_tokens(value, scope.frames, scope.step, self._masks, by_key=by_key)
                if real is None or (real.shape != value.shape and site.module in self._grouped):
                    return  # padding is in it, and is whatever it happens to be
                value = real
            key = self.stage, f"{site.name}.{part}" if part else site.name
            row = self._rows.get(key)
            if row is None:
                row = Row(site, self.stage, part, value.dtype, tuple(value.shape), SiteTally(self._seed), [])
                self._rows[key] = row
            row.tally.fold(value, self._sketcher(value.device))
            if self._full:
                row.full.append(value.cpu().clone())

    def _sketcher(self, device: torch.device) -> Sketcher:
        if device not in self._sketchers:
            self._sketchers[device] = Sketcher(self._seed, device)
        return self._sketchers[device]
