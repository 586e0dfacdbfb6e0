"""A window of layers that gives nothing but zeros for one decode step, and how the model goes on from there.

Rows are decoded token by token with a cache, fed with their own tokens, once clean and once with everything that the
window computes stuck at zero in the first of these steps. What the step leaves in the cache stays there. Recovered is
the model at the first step from which on the accuracy lost is within the limit.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, ModelError
from ..injection import inject
from ..measure.intervals import Estimate
from ..noise import StuckAt
from .fault_cases import FaultCase
from .fault_judging import Check, FaultResult, bounded
from .fault_rows import Rows, right

__all__ = ["run_outage"]

STEPS = 16
"""decoded from the struck one on, where rows are long enough"""
STARTS = 3
"""places in each row at which the outage is tried"""

Steps = NDArray[np.float64]
"""rows x steps: how often the next token was right, summed over the starts"""


def run_outage(case: FaultCase, rows: Rows) -> FaultResult:
    """Degradation over all steps, and the step from which on it is within its limit."""
    asked, limits = case.parameters, case.acceptance_criteria
    most, within = limits["max_degradation"], limits["recovery_steps"]
    if asked["steps"] != 1:
        raise InputError(f"{case.test_id}: steps: got {asked['steps']}, expected 1")
    ids, steps = _equally_long(rows, within, case.test_id)
    starts = np.unique(np.linspace((ids.shape[1] - 1 - steps) // 2, ids.shape[1] - 1 - steps, STARTS).astype(int))
    clean, struck = np.zeros((2, len(ids), steps))
    for start in starts.tolist():
        clean += _decoded(rows.model, ids, start, steps)
        struck += _decoded(rows.model, ids, start, steps, stuck=asked["layers"])
    draws = len(ids) * len(starts)
    whole = _lost(clean, struck, since=0, draws=draws)
    recovered = next((at for at in range(steps) if _lost(clean, struck, since=at, draws=draws).high <= most), None)
    after = _lost(clean, struck, since=within, draws=draws)
    when = f"recovered after {recovered} steps" if recovered is not None else f"not recovered in {steps} steps"
    told = f"{when}, within {within} is required"
    checks = (
        Check.at_most(f"degradation over {steps} steps", whole, most),
        Check(recovered is not None and recovered <= within, f"{told} ({Check.at_most('then', after, most).sentence})"),
    )
    return FaultResult(case, checks, {"degradation": whole, "degradation_after": after})


def _lost(clean: Steps, struck: Steps, *, since: int, draws: int) -> Estimate:
    return bounded((clean - struck)[:, since:].sum(1), clean[:, since:].sum(1), draws=draws)


def _equally_long(rows: Rows, within: int, test_id: str) -> tuple[Tensor, int]:
    """Rows that are long enough, cut to one length, and how many of their tokens are decoded."""
    lengths, least = rows.mask.sum(1), 2 * (within + 1) + 1
    kept = lengths >= least
    if int(kept.sum()) < 2:
        raise InputError(f"{test_id}: fewer than two rows of the data have {least} tokens; use longer texts")
    shortest = int(lengths[kept].min())
    return rows.ids[kept, :shortest], min(STEPS, (shortest - 1) // 2)


@torch.inference_mode(False)
@torch.no_grad()
def _decoded(model: Any, ids: Tensor, start: int, steps: int, *, stuck: Sequence[int] | None = None) -> Steps:
    """Whether each next token is right; with `stuck`, these layers give zeros in the first step."""
    output: Any = model(input_ids=ids[:, :start], use_cache=True)
    found = []
    for at in range(start, start + steps):
        if getattr(output, "past_key_values", None) is None:
            raise ModelError(
                f"{type(model).__name__}: gives no cache of keys and values, so it cannot decode step by step"
            )
        given: Mapping[str, Any] = {"past_key_values": output.past_key_values, "use_cache": True}
        broken = inject(model, StuckAt(1.0), layers=stuck) if stuck is not None and at == start else nullcontext()
        with broken:
            output = model(input_ids=ids[:, at : at + 1], **given)
        found.append(right(output.logits[:, -1], ids[:, at + 1]))
    return torch.stack(found, 1).double().cpu().numpy()
