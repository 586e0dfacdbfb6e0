"""One trial: a device or faults played on a fixture, traced, compared with the healthy run, and scored by the truth."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

import noisescope as ns
from noisescope.comparing import Comparison
from noisescope.traces import Trace
from trained import fixture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
IDS = torch.randint(3, 500, (2, 24), generator=torch.Generator().manual_seed(0))


@cache
def healthy(name: str, dtype: str) -> tuple[nn.Module, Trace]:
    """A fixture, and its trace with inputs and floors."""
    model = fixture(name)[0].to(DTYPES[dtype])
    return model, ns.trace(model, IDS, inputs=True)


@dataclass(frozen=True)
class Trial:
    """What was played and what was found."""

    what: tuple[str, ...]
    inert: bool
    truth: str | None
    """the first traced site that came out otherwise"""
    layers: tuple[Any, ...]
    found: Comparison

    @property
    def first_is_right(self) -> bool:
        first = self.found.first
        return first is not None and first.site.name == self.truth

    @property
    def wrong_roles(self) -> list[tuple[Any, str]]:
        """Layers that should be called otherwise: sources are those played, amplifiers what comes after the first."""
        rows = list(self.found.layers)
        start = min(at for at, row in enumerate(rows) if row.layer in self.layers)
        expected = ["clean" if at < start else "amplifier" for at in range(len(rows))]
        return [
            (row.layer, row.role)
            for row, role in zip(rows, expected, strict=True)
            if row.role != ("source" if row.layer in self.layers else role)
        ]


def play(name: str, dtype: str, *what: str) -> Trial:
    model, reference = healthy(name, dtype)
    with ns.emulate(model, what, inputs={"input_ids": IDS}) as device:
        suspect = ns.trace(model, inputs_from=reference, floor=False)
    names = [site.name for site in reference.sites]
    layers = tuple(member.first_changed.layer for member in device.members if member.first_changed is not None)
    changed = device.first_changed
    truth = None if changed is None else changed.name
    if changed is not None and truth not in names:  # inside a fused kernel
        truth = f"{changed.module}.attention.0.forward"
    found = ns.compare(reference, suspect)
    rare = all(site.same_bits for site in found.sites)  # a fault that comes and goes may have struck the fed run alone
    return Trial(what, rare or any(member.inert for member in device.members), truth, layers, found)
