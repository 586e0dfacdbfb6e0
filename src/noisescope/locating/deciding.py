"""From the rows of a traced pass to a verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..comparing import Comparison
from ..faults import FaultSimulator
from ..sites import Layout
from .precision import FLUSH, MODES, NEARLY_ALL
from .reference import against_reference, evidence_of_reference
from .rounding import FALSE_ALARMS
from .sections import sections_of, site_section
from .sentences import against, evidence_of
from .tracing import Plan, Row, Tracer
from .verdict import Outcome, Suspect, Verdict
from .weights import WeightCheck

__all__ = ["decide"]


def decide(
    tracer: Tracer,
    plan: Plan,
    *,
    config: Mapping[str, Any],
    weights: WeightCheck | None,
    model: nn.Module,
    layout: Layout,
    simulators: Sequence[FaultSimulator] = (),
    reference: Comparison | None = None,
) -> Verdict:
    """The verdict on what was traced; `config` says what was asked for."""
    rows = tracer.rows
    mode = _mode(rows, config["precision_mode"])
    for row in rows:
        row.excused = row.deviates and _is_explained(row, mode)
    off = [row for row in rows if row.faulty]
    modes = [f"{mode}: {MODES[mode].says}"] if mode else []
    if flushed := sum(row.host.flushed for row in rows if row.host is not None):
        modes.append(f"flush: {flushed} numbers too small to be normal came as 0")
    suspects = _suspects(off)
    suspects += [_memory(changed) for changed in (weights.changed if weights else ())]
    if reference is not None and not mode:  # a mode of less precision diverges everywhere
        known = {suspect.module for suspect in suspects}
        suspects += [one for one in against_reference(reference) if one.module not in known]
    missing, not_covered = _missing(tracer, plan), _not_covered(tracer, plan, config["method"], weights)
    outcome: Outcome = "faulty" if suspects else "inconclusive" if missing else "healthy"
    base = tracer.work.get("trace") or 1.0
    spent = {stage: done / base for stage, done in tracer.work.items()}
    evidence = tuple(evidence_of(rows, plan, weights, spent))
    if reference is not None:
        evidence += (evidence_of_reference(reference),)
        spent["reference"] = evidence[-1].forwards
    judged = [row.ratio for row in rows if row.ratio is not None and not row.excused]
    changing = [row.site.name for row in rows if row.differing and not row.faulty]
    sections = sections_of(
        outcome,
        model=model,
        config=config,
        evidence=evidence,
        by_stage=spent,
        coverage={
            "checked": len(rows),
            "layers": len(layout.blocks),
            "unjudged": [row.site.name for row in rows if row.host is not None and not row.host.judged],
            "hidden": [f"{module} ({kernel})" for module, kernel in _hidden(tracer)],
        },
        suspects=suspects,
        sites=[site_section(part) for row in rows for part in (row, row.closer) if part is not None],
        missing=missing,
        not_covered=not_covered,
        precision_modes=modes,
        non_deterministic=changing,
        false_alarm_rate=FALSE_ALARMS,
        worst_ratio=max(judged, default=None),
        simulators=simulators,
    )
    return Verdict(outcome, tuple(suspects), evidence, tuple(missing), tuple(modes), tuple(changing), sections)


# --- precision modes --------------------------------------------------------------------------------------------


def _mode(rows: Sequence[Row], asked: str | None) -> str | None:
    """The mode that the device is said to have, or the finest that explains nearly all products of the pass."""
    if asked is not None and asked != FLUSH:
        return asked
    products = [row for row in rows if row.is_product]
    off = [row for row in products if row.deviates]
    if len({row.site.module for row in off}) < 3 or len(off) < NEARLY_ALL * len(products):
        return None
    shares = {name: sum(name in row.modes for row in off) / len(off) for name in MODES}
    return next((name for name, share in shares.items() if share >= NEARLY_ALL), None)


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
        tuple(against(first)),
        len(rows),
    )


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


def _missing(tracer: Tracer, plan: Plan) -> list[str]:
    rows, found = tracer.rows, []
    if not rows:
        found.append("the model computed nothing that could be looked at")
    if not plan.host:
        found.append("nothing speaks against the device, but no operator was computed on the host (--method auto)")
    unjudged = [row.site.name for row in rows if row.host is not None and not row.host.judged]
    if unjudged:
        found.append(f"no rounding bound is known for {len(unjudged)} calls that differ from the host: {unjudged[0]}")
    if hidden := list(_hidden(tracer)):
        module, kernel = hidden[0]
        found.append(f"{len(hidden)} fused kernels could not be looked into: {kernel} of {module}")
    return found


def _not_covered(tracer: Tracer, plan: Plan, method: str, weights: WeightCheck | None) -> list[str]:
    """What could be broken without this verdict noticing, beyond what the method page says of every verdict."""
    rows, found = tracer.rows, []
    if plan.runs < 2:
        found.append("every call was made once: what comes and goes was not looked for")
    if not plan.identities:
        why = ", the budget is too small for them" if method == "auto" else f" by --method {method}"
        found.append(f"identities were left out{why}: faults below the rounding of a long sum may be there")
    if tracer.random:
        found.append(f"{len(tracer.random)} calls draw random numbers, such as {tracer.random[0].name}")
    if refused := [f"{name} of {row.site.name}" for row in rows for name in row.refused]:
        found.append(f"{len(refused)} identities could not be asked for, a kernel refused the probe: {refused[0]}")
    if weights is None:
        found.append("the weights were not compared with a file")
    elif weights.unknown:
        found.append(f"{len(weights.unknown)} tensors are not in the file by their name, such as {weights.unknown[0]}")
    return found


def _hidden(tracer: Tracer) -> list[tuple[str, str]]:
    watch = tracer.device.watch
    return list(watch.hidden) if watch is not None else []
