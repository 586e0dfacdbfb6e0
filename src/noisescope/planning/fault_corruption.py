"""A channel whose values are corrupted: what that costs, and whether `locate` finds the module that it is in."""

from typing import Any

from ..errors import NothingMatched, quoted
from ..faults import FaultSimulator, Survey
from ..locating import Verdict, locate
from .fault_cases import FaultCase
from .fault_judging import Check, FaultResult, bounded
from .fault_rows import Rows

__all__ = ["run_corruption"]

PROMPTS = 2
"""rows that `locate` looks at"""


def run_corruption(case: FaultCase, rows: Rows) -> FaultResult:
    """Degradation, and whether the corruption was detected where it is, and only then."""
    asked, limits = case.parameters, case.acceptance_criteria
    healthy = _verdict(rows)
    with _corrupted(asked, rows) as fault:
        found = rows.everything(rows.plainly)
    if fault.inert:
        raise NothingMatched(f"{case.test_id}: {asked['kind']} changed nothing in channel {asked['channel']}")
    clean = rows.clean_plainly
    degradation = bounded(clean.correct - found.correct, clean.correct, draws=len(rows))
    checks = [Check.at_most("degradation", degradation, limits["max_degradation"])]
    if limits["detection_required"]:
        with _corrupted(asked, rows):
            verdict = _verdict(rows)
        checks.append(_detection(asked["module"], healthy, verdict))
    return FaultResult(case, tuple(checks), {"degradation": degradation})


def _detection(module: str, healthy: Verdict, verdict: Verdict) -> Check:
    if module in {suspect.module for suspect in healthy.sites}:
        return Check(False, "the module is a suspect without the fault too, so finding it tells nothing")
    named = [suspect.module for suspect in verdict.sites]
    told = f"first suspect {named[0]}" if named else verdict.outcome
    return Check(named[:1] == [module], f"detection is required, and locate says: {told}")


def _corrupted(asked: Any, rows: Rows) -> FaultSimulator:
    survey = Survey.of(rows.model, rows.layout, _prompts(rows))
    here = [site for site in survey.sites if site.module == asked["module"]]
    if not here:
        raise NothingMatched(f"module: the model computes nothing in {quoted(asked['module'])}")
    return FaultSimulator(
        rows.model,
        here[-1].name,
        asked["kind"],
        asked["magnitude"],
        seed=asked["seed"],
        channels=[asked["channel"]],
        layout=rows.layout,
        survey=survey,
    )


def _verdict(rows: Rows) -> Verdict:
    return locate(rows.model, _prompts(rows))


def _prompts(rows: Rows) -> dict[str, Any]:
    given: dict[str, Any] = {"input_ids": rows.ids[:PROMPTS], "use_cache": False}
    return given if bool(rows.mask[:PROMPTS].all()) else given | {"attention_mask": rows.mask[:PROMPTS]}
