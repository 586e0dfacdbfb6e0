"""A verdict as plain values: what is saved, and what every page of it is rendered from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ..faults import FaultSimulator
from .tracing import Row
from .verdict import Evidence, Outcome, Suspect

__all__ = ["sections_of", "shape_of", "site_section"]


def sections_of(
    outcome: Outcome,
    *,
    model: nn.Module,
    config: Mapping[str, Any],
    evidence: Iterable[Evidence],
    by_stage: Mapping[str, float],
    coverage: Mapping[str, Any],
    suspects: Sequence[Suspect] = (),
    sites: Sequence[Mapping[str, Any]] = (),
    missing: Iterable[str] = (),
    not_covered: Iterable[str] = (),
    precision_modes: Iterable[str] = (),
    non_deterministic: Iterable[str] = (),
    false_alarm_rate: float | None = None,
    worst_ratio: float | None = None,
    simulators: Iterable[FaultSimulator] = (),
) -> dict[str, Any]:
    """All sections, in the order in which they are read."""
    return {
        "schema": "noisescope verdict",
        "version": 1,
        "verdict": {
            "outcome": outcome,
            "missing": list(missing),
            "not_covered": list(not_covered),
            "false_alarm_rate": false_alarm_rate,
            "worst_ratio": worst_ratio,
        },
        "suspects": [
            {"rank": rank, **asdict(suspect), "evidence": list(suspect.evidence), "where": suspect.where}
            for rank, suspect in enumerate(suspects, 1)
        ],
        "evidence": [asdict(found) for found in evidence],
        "precision_modes": list(precision_modes),
        "non_deterministic": list(non_deterministic),
        "sites": list(sites),
        "coverage": dict(coverage),
        "cost": {"forward_pass_equivalents": sum(by_stage.values()), "by_stage": dict(by_stage)},
        "config": dict(config),
        "environment": _environment(model),
        "truth": [_truth(simulator, suspects) for simulator in simulators],
    }


def shape_of(inputs: Mapping[str, Any]) -> list[int]:
    """Rows and tokens."""
    ids = next((given for given in inputs.values() if isinstance(given, Tensor)), None)
    return list(ids.shape) if ids is not None else []


def _environment(model: nn.Module) -> dict[str, Any]:
    parameter = next(model.parameters(), None)
    return {
        "dtype": str(parameter.dtype).removeprefix("torch.") if parameter is not None else None,
        "device": parameter.device.type if parameter is not None else None,
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "torch": torch.__version__,
    }


def _truth(simulator: FaultSimulator, suspects: Sequence[Suspect]) -> dict[str, Any]:
    """Where a simulated fault really was, and how it fared."""
    target = simulator.target
    exact = [at for at, s in enumerate(suspects, 1) if s.module == target.module and s.operator in target.operators]
    layer = [at for at, s in enumerate(suspects, 1) if s.layer == target.layer]
    return {
        "fault": str(simulator.fault),
        "site": target.name,
        "layer": target.layer,
        "operator": target.operator,
        "inert": simulator.inert,
        "changed": simulator.changed,
        "elements": simulator.elements,
        "rank": exact[0] if exact else None,
        "layer_rank": layer[0] if layer else None,
    }


def site_section(row: Row) -> dict[str, Any]:
    """What was found at one call."""
    return {
        "site": row.site.name,
        "layer": row.site.layer,
        "operator": row.site.operator,
        "module": row.site.module,
        "elements": row.elements,
        "dtype": row.dtype,
        "rule": row.host.rule if row.host else None,
        "ratio": row.ratio,
        "bad": row.host.bad if row.host else None,
        "differing": row.differing if row.repeated else None,
        "identities": row.identities,
        "failed": [failure.identity for failure in row.failures],
        "faulty": row.faulty,
    }
