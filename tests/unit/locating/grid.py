"""Simulated faults at many places of one pass: every place must be named, and no other.

Each call is judged from the inputs that the device gave it, so faults at all layers can be tried at once.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.faults import Fault
from noisescope.locating import Verdict, locate
from trained import fixture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DOCUMENTED = {"dead_zone": 0.3, "saturation": 0.2, "bias": 0.3, "noise": 0.1, "spike": 0.1}
"""kinds of layer-output faults, with their documented magnitudes"""
NAMES = {
    "dead_zone": "zeroing",
    "saturation": "clipping",
    "bias": "offset",
    "noise": "noise",
    "spike": "spikes",
    "gain": "gain",
    "bit_flip": "spikes",
    "stuck_at": "stuck",
    "wrong_rounding": "precision loss",
    "low_precision_accumulate": "precision loss",
    "lut_exp": "precision loss",
}
"""kind of fault -> what it should be called"""


@cache
def model(name: str, dtype: str) -> nn.Module:
    return fixture(name)[0].to(DTYPES[dtype])


@cache
def tokens(name: str, rows: int = 1, length: int = 12) -> dict[str, Tensor]:
    text = "The statement is executed for every item, and the result of the expression is stored in the target list."
    ids = fixture(name)[1](text * 4, return_tensors="pt")["input_ids"][0]
    return {"input_ids": ids[: rows * length].view(rows, length)}


def everywhere(sites: Iterable[str], kind: str, magnitude: float, **options: Any) -> list[Fault]:
    return [Fault(kind, magnitude, site, seed=at, **options) for at, site in enumerate(sites)]


def score(verdict: Verdict) -> tuple[int, int, int, list[str]]:
    """Faults that changed a bit, how many of these were named, how many were inert, and modules blamed wrongly."""
    truths = verdict.sections["truth"]
    effective = [truth for truth in truths if not truth["inert"]]
    named = sum(truth["rank"] is not None for truth in effective)
    wrong = [s.name for s in verdict.sites if not any(t["site"].startswith(f"{s.module}.") for t in truths)]
    return len(effective), named, len(truths) - len(effective), wrong


def run(name: str, dtype: str, faults: list[Fault], **options: Any) -> Verdict:
    return locate(model(name, dtype), tokens(name), simulate=faults, **options)
