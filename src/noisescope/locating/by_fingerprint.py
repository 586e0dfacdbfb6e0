"""`fingerprint`: which layer explains the difference to another device's logits, where logits are all that there is.

The device at hand is the good one, the trace that of the suspect (`trace --outputs-only`): what one unit of rounding
does, and how layers answer to errors, is measured here. What the method finds and where it fails is measured in
`benchmarks/fingerprint`, and told in docs/compare.md.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..comparing.fingerprint import Fingerprint, rank_layers_by_fingerprint
from ..comparing.responses import logits_of
from ..diagnosis.progress import Progress
from ..errors import InputError
from ..faults import FaultSimulator
from ..sites import Layout
from ..traces import Trace
from ..traces.passes import batches_of
from .sections import sections_of, shape_of
from .verdict import Evidence, Outcome, Suspect, Verdict

__all__ = ["locate_by_fingerprint"]

ROUNDING = "rounding"


def locate_by_fingerprint(
    model: nn.Module,
    reference: Trace,
    *,
    layout: Layout,
    simulators: Sequence[FaultSimulator] = (),
    seed: int = 0,
    progress: Progress,
    name: str | None = None,
) -> Verdict:
    """A verdict whose `sections["fingerprint"]` has the posterior of every layer.

    With simulated faults the suspect is played here, and the trace is that of a healthy device.
    """
    logits, healthy = _logits(reference), None
    inputs = batches_of(reference, model)[0]
    if simulators:
        logits, healthy = _played(model, inputs, simulators), logits
    found = rank_layers_by_fingerprint(
        model,
        inputs,
        logits,
        reference=healthy,
        dtype=getattr(torch, reference.head.environment.dtype),
        layout=layout,
        seed=seed,
        progress=progress,
    )
    outcome: Outcome = "faulty" if not found.cannot_tell else "healthy" if ROUNDING in found.reason else "inconclusive"
    evidence = Evidence("fingerprint", _sentence(found, outcome), found.forward_passes)
    suspects = _suspects(found, layout) if outcome == "faulty" else ()
    missing = (f"cannot tell: {found.reason}",) if outcome == "inconclusive" else ()
    sections = sections_of(
        outcome,
        model=model,
        config=_config(name or type(model).__name__, reference, inputs, seed),
        evidence=[evidence],
        by_stage={"fingerprint": found.forward_passes},
        coverage={"checked": 0, "layers": len(layout.blocks), "unjudged": [], "hidden": []},
        suspects=suspects,
        missing=missing,
        not_covered=["only the logits were compared: faults that they do not show may be there"],
        simulators=simulators,
    )
    sections["fingerprint"] = [
        {"layer": layer, "posterior": found.posterior[layer]} for layer in found.ranking if suspects or missing
    ]
    return Verdict(outcome, suspects, (evidence,), missing, sections=sections)


def _played(model: nn.Module, inputs: dict[str, Any], simulators: Sequence[FaultSimulator]) -> Tensor:
    with ExitStack() as stack, torch.no_grad():
        for simulator in simulators:
            stack.enter_context(simulator)
        return logits_of(model, inputs)


def _config(model: str, reference: Trace, inputs: dict[str, Any], seed: int) -> dict[str, Any]:
    return {
        "model": model,
        "method": "fingerprint",
        "runs": 1,
        "budget": None,
        "precision_mode": None,
        "shape": shape_of(inputs),
        "reference": reference.name or "a trace",
        "seed": seed,
    }


def _logits(reference: Trace) -> Tensor:
    at = next((n for n, site in enumerate(reference.sites) if site.operator == "logits" and n in reference.full), None)
    if reference.head.decode:
        raise InputError(f"reference: {reference.name or 'the trace'} was made with --decode; make it without")
    if at is None or not reference.ids:
        raise InputError(
            f"reference: {reference.name or 'the trace'} does not hold logits; make it with `trace --outputs-only`"
        )
    return reference.full[at]()[0]


def _sentence(found: Fingerprint, outcome: Outcome) -> str:
    if outcome == "healthy":
        return f"the logits differ by {found.deviation:.2g} times what one unit of rounding does: no more than rounding"
    first = ", ".join(f"{layer} ({found.posterior[layer]:.2f})" for layer in found.ranking[:3])
    if outcome == "inconclusive":
        return f"cannot tell: {found.reason}; first {first}"
    return (
        f"the logits' deviation is best explained by an error of layer {first}; read it as this layer or one beside it"
    )


def _suspects(found: Fingerprint, layout: Layout) -> tuple[Suspect, ...]:
    layer = found.ranking[0]
    path = layout.paths[layout.blocks[layer]]
    told = f"fingerprint: posterior {found.posterior[layer]:.2f}, as an error of the kind {found.family[layer]}"
    return (Suspect(path, layer, "block", path, "other", False, (told,)),)
