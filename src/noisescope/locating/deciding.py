"""From the rows of a traced pass to a verdict."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..faults import FaultSimulator
from ..sites import Layout
from .precision import MODES, NEARLY_ALL
from .rounding import FALSE_ALARMS
from .tracing import Plan, Row, Tracer
from .verdict import Evidence, Suspect, Verdict, as_sections
from .weights import WeightCheck

__all__ = ["decide"]


def decide(
    tracer: Tracer,
    plan: Plan,
    *,
    method: str,
    weights: WeightCheck | None,
    inputs: dict[str, Any],
    model: nn.Module,
    layout: Layout,
    name: str | None,
    precision_mode: str | None,
    simulators: Sequence[FaultSimulator],
    runs: int,
) -> Verdict:
    """The verdict on what was traced."""
    rows = tracer.rows
    mode = _mode(rows, precision_mode)
    for row in rows:
        row.excused = row.deviates and _is_explained(row, mode)
    off = [row for row in rows if row.faulty]
    modes = [f"{mode}: {MODES[mode].says}"] if mode else []
    if flushed := sum(row.host.flushed for row in rows if row.host is not None):
        modes.append(f"flush: {flushed} numbers too small to be normal came as 0")
    suspects = _suspects(off)
    suspects += [_memory(changed) for changed in (weights.changed if weights else ())]
    missing, not_covered = _missing(rows, tracer), _not_covered(plan, method, weights)
    outcome = "faulty" if suspects else "inconclusive" if missing else "healthy"
    base = tracer.work.get("trace") or 1.0
    spent = {stage: done / base for stage, done in tracer.work.items()}
    evidence = _evidence(rows, plan, weights, spent)
    judged = [row.ratio for row in rows if row.ratio is not None and not row.excused]
    sections = {
        "schema": "noisescope verdict",
        "version": 1,
        "verdict": {
            "outcome": outcome,
            "missing": missing,
            "not_covered": not_covered,
            "false_alarm_rate": FALSE_ALARMS,
            "worst_ratio": max(judged, default=None),
        },
        "suspects": as_sections(suspects),
        "evidence": [{"method": e.method, "sentence": e.sentence, "forwards": e.forwards} for e in evidence],
        "precision_modes": modes,
        "non_deterministic": [row.site.name for row in rows if row.differing and not row.faulty],
        "sites": [_site(row) for row in rows],
        "coverage": {
            "checked": len(rows),
            "layers": len(layout.blocks),
            "unjudged": [row.site.name for row in rows if row.host is not None and not row.host.judged],
            "hidden": [f"{module} ({kernel})" for module, kernel in _hidden(tracer)],
        },
        "cost": {"forward_pass_equivalents": sum(spent.values()), "by_stage": spent},
        "config": {
            "model": name or type(model).__name__,
            "method": method,
            "runs": runs,
            "precision_mode": precision_mode,
            "shape": _shape(inputs),
        },
        "environment": _environment(model),
        "truth": [_truth(simulator, suspects) for simulator in simulators],
    }
    return Verdict(
        outcome,  # type: ignore[arg-type]
        tuple(suspects),
        tuple(evidence),
        tuple(missing),
        tuple(modes),
        tuple(sections["non_deterministic"]),  # type: ignore[arg-type]
        sections,
    )


# --- precision modes --------------------------------------------------------------------------------------------


def _mode(rows: Sequence[Row], asked: str | None) -> str | None:
    """The mode that the device is said to have, or the finest that explains nearly all products of the pass."""
    if asked is not None and asked != "flush":
        return asked
    products = [row for row in rows if row.is_product]
    off = [row for row in products if row.deviates]
    if len({row.site.module for row in off}) < 3 or len(off) < NEARLY_ALL * len(products):
        return None
    return next((name for name in MODES if all(name in row.modes for row in off)), None)


def _is_explained(row: Row, mode: str | None) -> bool:
    if mode is None or not row.is_product:
        return False
    return mode in row.modes and (row.closer is None or mode in row.closer.modes)


# --- suspects ---------------------------------------------------------------------------------------------------


def _suspects(off: Sequence[Row]) -> list[Suspect]:
    """One for each operator of a module, those first that the host or a repetition convicts."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in off:
        found = row.closer or row
        groups.setdefault((found.site.module, found.site.operator), []).append(found)
    suspects = [_suspect(rows) for rows in groups.values()]
    surest = [any(row.beyond or row.convicted for row in rows) for rows in groups.values()]
    order = sorted(range(len(suspects)), key=lambda at: not surest[at])
    return [suspects[at] for at in order]


def _suspect(rows: Sequence[Row]) -> Suspect:
    first = rows[0]
    site = first.site
    kinds = [row.kind for row in rows if row.kind and row.kind != "other"]
    return Suspect(
        site.name,
        site.layer,
        site.operator,
        site.module,
        kinds[0] if kinds else "other",
        any(row.differing for row in rows),
        tuple(_sentences(first)),
        len(rows),
    )


def _sentences(row: Row) -> list[str]:
    found = []
    if not row.finite:
        found.append("gives values that are not finite")
    if row.host is not None and row.convicted:
        found.append(
            f"host: {row.host.bad} of {row.host.elements} elements are off, "
            f"by up to {row.host.ratio:.3g} times the rounding bound"
        )
    if row.differing:
        found.append(f"repeat: {row.differing} of {row.elements} elements come out otherwise when it is asked again")
    for failure in row.failures:
        found.append(f"identities: {failure.identity}: fails in {failure.bad} of {failure.elements} elements")
    return found


def _memory(changed: Any) -> Suspect:
    return Suspect(
        changed.name,
        changed.layer,
        "weight",
        changed.name.rpartition(".")[0],
        "corrupted memory",
        False,
        (f"weights: {changed.changed} of {changed.elements} elements are not those of the file",),
    )


# --- what it rests on -------------------------------------------------------------------------------------------


def _missing(rows: Sequence[Row], tracer: Tracer) -> list[str]:
    found = []
    if not rows:
        found.append("the model computed nothing that could be looked at")
    unjudged = [row.site.name for row in rows if row.host is not None and not row.host.judged]
    if unjudged:
        found.append(f"no rounding bound is known for {len(unjudged)} calls that differ from the host: {unjudged[0]}")
    if hidden := list(_hidden(tracer)):
        module, kernel = hidden[0]
        found.append(f"{len(hidden)} fused kernels could not be looked into: {kernel} of {module}")
    return found


def _not_covered(plan: Plan, method: str, weights: WeightCheck | None) -> list[str]:
    """What could be broken without this verdict noticing, beyond what the method page says of every verdict."""
    found = []
    if not plan.host:
        found.append("operators were not computed on the host")
    if not plan.identities and method == "auto":
        found.append("identities were left out, the budget is too small for them")
    if weights is None:
        found.append("the weights were not compared with a file")
    elif weights.unknown:
        found.append(f"{len(weights.unknown)} tensors are not in the file by their name, such as {weights.unknown[0]}")
    return found


def _hidden(tracer: Tracer) -> list[tuple[str, str]]:
    watch = tracer.device.watch
    return list(watch.hidden) if watch is not None else []


def _evidence(rows: Sequence[Row], plan: Plan, weights: WeightCheck | None, spent: dict[str, float]) -> list[Evidence]:
    found = []
    if plan.runs > 1:
        found.append(Evidence("repeat", _repeat(rows, plan), spent.get("repeat", 0.0)))
    if plan.host:
        found.append(Evidence("host", _host(rows), spent.get("host", 0.0)))
    if plan.identities:
        found.append(Evidence("identities", _identities(rows), spent.get("identities", 0.0)))
    if weights is not None:
        changed = f"{len(weights.changed)} of {weights.checked} tensors are not those of the file"
        same = f"all {weights.checked} tensors are those of the file"
        found.append(Evidence("weights", changed if weights.changed else same, 0.0))
    return found


def _repeat(rows: Sequence[Row], plan: Plan) -> str:
    differ = [row for row in rows if row.differing]
    if not differ:
        return f"clean ({plan.runs} runs of {len(rows)} calls)"
    beyond = [row for row in differ if row.beyond]
    if beyond:
        return f"first difference  {beyond[0].site.name}   {beyond[0].differing} of {beyond[0].elements} elements"
    return f"{len(differ)} calls come out otherwise every time, within rounding; first {differ[0].site.name}"


def _host(rows: Sequence[Row]) -> str:
    off = [row for row in rows if row.convicted and row.faulty]
    if off:
        first = off[0]
        assert first.host is not None
        return (
            f"first deviation  {first.site.name}   {first.host.bad} of {first.host.elements} elements, "
            f"{first.host.ratio:.3g} x the rounding bound"
        )
    excused = sum(row.excused for row in rows)
    judged = sum(row.host is not None and row.host.judged for row in rows)
    more = f", {excused} by the precision mode" if excused else ""
    return f"{judged} calls within their rounding bounds{more}"


def _identities(rows: Sequence[Row]) -> str:
    off = [row for row in rows if row.failures and row.faulty]
    asked = sum(len(row.identities) for row in rows)
    if not off:
        return f"{asked} hold at {sum(bool(row.identities) for row in rows)} calls"
    names = ", ".join(failure.identity for failure in off[0].failures)
    more = f"; and at {len(off) - 1} more calls" if len(off) > 1 else "; nowhere else"
    return f"{names}: fails at {off[0].site.name}{more}"


def _site(row: Row) -> dict[str, Any]:
    return {
        "site": row.site.name,
        "layer": row.site.layer,
        "operator": row.site.operator,
        "module": row.site.module,
        "elements": row.elements,
        "rule": row.host.rule if row.host else None,
        "ratio": row.ratio,
        "bad": row.host.bad if row.host else None,
        "differing": row.differing if row.repeated else None,
        "identities": row.identities,
        "failed": [failure.identity for failure in row.failures],
        "faulty": row.faulty,
    }


def _shape(inputs: dict[str, Any]) -> list[int]:
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
