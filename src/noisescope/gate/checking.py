"""`take_baseline` and `check`: the two ends of the gate.

baseline = noisescope.take_baseline(good, texts, tokenizer=tokenizer)
baseline.save("baseline.json")
found = noisescope.check(candidate, texts, baseline="baseline.json", max_degradation=0.15, tokenizer=tokenizer)
print(found)
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..diagnosis import Diagnosis, Progress
from ..diagnosis.accepting import accept, data_for
from ..diagnosis.memory import enough_memory
from ..diagnosis.progress import silent
from ..errors import InputError, ModelError
from ..specs import DiagnosisSpec, checked
from ..specs.checks import number, optional
from .baseline import Baseline, Limits, open_baseline
from .evaluating import Evaluation, evaluate
from .judging import POINT, RESOLUTION, WORSE, Allowed, OperatorRow, Outcome, judge
from .question import ASKED, question, refuse_other, surroundings, told_differences
from .result import RobustnessCheck
from .significance import LEVEL, POWER

__all__ = ["CHECKS", "SAMPLES", "check", "take_baseline"]

SAMPLES = 400
"""sequences unless something else is asked: with fewer, few models pass for lack of evidence"""
CHECKS = {
    "max_degradation": optional(number(above=0, most=1)),
    "resolution": number(above=POINT, most=1),
}
"""argument -> its check; flags are held to the same"""


@torch.inference_mode(False)
def take_baseline(
    model: nn.Module,
    data: object = None,
    *,
    noise_scale: float = 0.05,
    error_type: str = "relative_gaussian",
    layers: Any = None,
    operators: Any = None,
    seed: int = 0,
    tokenizer: Any = None,
    n_samples: int = SAMPLES,
    batch_size: int = 16,
    max_length: int | None = None,
    blocks: str | None = None,
    name: str | None = None,
    progress: Progress = silent,
) -> Baseline:
    """What noise on each operator costs a checkpoint that you trust, by sequence: what later ones are held against.

    Args:
        model: a Hugging Face causal language model in eval mode. It is left bit-identical.
        data: what to measure on; None is a built-in English text. Anything that `open_data` takes.
        noise_scale: 0.05 is standard.
        error_type: the noise model.
        layers: which layers; None for all.
        operators: which operators; None for all. Every one costs a forward pass.
        seed: of the choice of data and of the noise.
        tokenizer: needed where data is text.
        n_samples: samples of the data; the more, the smaller a change is seen.
        batch_size: rows that run together.
        max_length: tokens of a row.
        blocks: where the blocks are, for a model whose structure is not recognised.
        name: what the model is called.
        progress: told how far the run is.
    """
    spec = DiagnosisSpec("operator", noise_scale, None, error_type, layers, operators, seed=seed)
    opening = {"n_samples": n_samples, "batch_size": batch_size, "max_length": max_length}
    run = _opened(model, data, spec, opening, tokenizer=tokenizer, blocks=blocks)
    asked = question(run, tokenizer)
    with enough_memory(batch_size):
        found = evaluate(run, progress=progress)
    if found.failed:
        place, why = next(iter(found.failed.items()))
        raise ModelError(f"{place}: could not be measured, and a baseline needs all of it: {why}")
    if not found.conclusive:
        raise InputError(
            f"{run.data.name}: the model's accuracy, {found.accuracy:.3g}, is no better than chance, "
            f"{found.chance:.3g}; there is nothing to lose, pass data on which it is"
        )
    return Baseline(name or type(model).__name__, asked, surroundings(model), found)


@torch.inference_mode(False)
def check(
    model: nn.Module,
    data: object = None,
    *,
    baseline: "Baseline | Limits | str | Path",
    max_degradation: float | None = None,
    resolution: float = RESOLUTION,
    tokenizer: Any = None,
    n_samples: int | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    blocks: str | None = None,
    name: str | None = None,
    once_asked: Callable[[Mapping[str, Any]], None] = lambda _asked: None,
    progress: Progress = silent,
) -> RobustnessCheck:
    """Whether a checkpoint is as robust as the one that the baseline was made of, and within a limit.

    Args:
        model: a checkpoint of the same model, in eval mode.
        data: what the baseline was made on: the same tokens, else it is refused.
        baseline: a `Baseline`, its file, or a report of `diagnose`, which is good for limits alone.
        max_degradation: the share of accuracy that noise on any operator may cost; None for no limit. With a report,
            None is what its most fragile operator costs, and 20% and a point on top.
        resolution: the change that must be visible, or the check is inconclusive; 30% of what the operator cost if
            that is more.
        tokenizer: needed where data is text.
        n_samples: as the baseline has, unless you say otherwise; the same for batch_size and max_length.
        batch_size: rows that run together.
        max_length: tokens of a row.
        blocks: where the blocks are, for a model whose structure is not recognised.
        name: what the model is called.
        once_asked: told what is going to be measured, before it is; what it raises ends the check.
        progress: told how far the run is.
    """
    checked({"max_degradation": max_degradation, "resolution": resolution}, CHECKS)
    known = open_baseline(baseline) if isinstance(baseline, (str, Path)) else baseline
    label = str(baseline) if isinstance(baseline, (str, Path)) else "baseline"
    spec = DiagnosisSpec(level="operator", **{field: known.question[field] for field in ASKED})
    given = {"n_samples": n_samples, "batch_size": batch_size, "max_length": max_length}
    usual = known.question if isinstance(known, Baseline) else {"n_samples": SAMPLES, "batch_size": 16}
    opening = {field: usual.get(field) if value is None else value for field, value in given.items()}
    run = _opened(model, data, spec, opening, tokenizer=tokenizer, blocks=blocks)
    asked = question(run, tokenizer)
    _refuse_other(known, asked, label)
    once_asked(asked)
    limit = max_degradation if max_degradation is not None or isinstance(known, Baseline) else _limit_of(known)
    with enough_memory(int(opening["batch_size"] or 16)):
        found = evaluate(run, progress=progress)
    return _judged(run, known, found, Allowed(limit, resolution), asked=asked, name=name)


def _judged(
    run: Diagnosis,
    known: "Baseline | Limits",
    found: Evaluation,
    allowed: Allowed,
    *,
    asked: Mapping[str, Any],
    name: str | None,
) -> RobustnessCheck:
    """The verdict on what was measured, with all that it rests on."""
    before = known.evaluation if isinstance(known, Baseline) else None
    doubts = _doubts(before, found)
    rows = judge(before, found, allowed) if found.clean.any() else []
    tests = len(rows) * ((before is not None) + (allowed.max_degradation is not None))
    sections = {
        "schema": "noisescope check",
        "version": 1,
        "outcome": _outcome(rows, doubts),
        "model": name or type(run.model).__name__,
        "weights": run.weights,
        "baseline": _told_baseline(known),
        "differs": _differs(known, run.model),
        "doubts": doubts,
        "accuracy": {"baseline": None if before is None else before.accuracy, "current": found.accuracy},
        "rows": [{**asdict(row), "is_worse": row.is_worse} for row in rows],
        "rules": _rules(rows, allowed, tests=tests),
        "question": dict(asked),
        "environment": surroundings(run.model),
        "data": {"name": run.data.name, "samples": len(found.asked), "predictions": int(found.asked.sum())},
        "cost": found.cost,
    }
    return RobustnessCheck(tuple(rows), sections)


def _opened(
    model: nn.Module,
    data: object,
    spec: DiagnosisSpec,
    opening: Mapping[str, Any],
    *,
    tokenizer: Any,
    blocks: str | None,
) -> Diagnosis:
    """Model, data and noise put together, after all that can be refused has been."""
    accept(model)
    return Diagnosis(model, data_for(model, data, tokenizer, seed=spec.seed, **opening), spec, blocks=blocks)


def _refuse_other(known: "Baseline | Limits", now: Mapping[str, Any], label: str) -> None:
    if isinstance(known, Baseline):
        refuse_other(known.question, now, what=label)
    elif known.layers not in (None, now["layers in all"]):
        layers = f"{known.layers}, now {now['layers in all']}"
        raise InputError(f"{label}: a report of another number of layers ({layers}); diagnose this model anew")
    elif other := set(known.degradation) ^ set(now["places"]):
        raise InputError(
            f"{label}: a report of other operators ({' '.join(sorted(other))} in one of them alone); diagnose this "
            "model anew"
        )


def _limit_of(known: "Baseline | Limits") -> float:
    """What a report allows where no limit is given: its worst operator, by the upper end of its interval, and more."""
    highest = 0.0 if isinstance(known, Baseline) else max(0.0, known.highest)
    return min(1.0, max((1 + WORSE) * highest, highest + POINT))


def _doubts(before: Evaluation | None, after: Evaluation) -> list[str]:
    """What makes all of it inconclusive."""
    return [
        f"The clean accuracy of the {whose}, {one.accuracy:.3g}, is no better than chance, {one.chance:.3g}: there is "
        "nothing to lose."
        for whose, one in (("baseline", before), ("checkpoint", after))
        if one is not None and not one.conclusive
    ]


def _differs(known: "Baseline | Limits", model: nn.Module) -> list[str]:
    return list(told_differences(known.environment, surroundings(model))) if isinstance(known, Baseline) else []


def _outcome(rows: list[OperatorRow], doubts: list[str]) -> Outcome:
    """Failed if anything is; but where nothing can be lost, what was measured means nothing."""
    if doubts or not rows:
        return "inconclusive"
    found = {row.outcome for row in rows}
    return "failed" if "failed" in found else "inconclusive" if "inconclusive" in found else "passed"


def _told_baseline(known: "Baseline | Limits") -> dict[str, Any]:
    if isinstance(known, Baseline):
        return {"kind": "baseline", "model": known.model, "digest": known.digest}
    return {"kind": "report", "model": known.model, "degradation": dict(known.degradation)}


def _rules(rows: list[OperatorRow], allowed: Allowed, *, tests: int) -> dict[str, Any]:
    return {
        **asdict(allowed),
        "worse": WORSE,
        "point": POINT,
        "level": LEVEL,
        "power": POWER,
        "tests": tests,
        "detectable": max((row.detectable for row in rows if row.detectable is not None), default=None),
        "detectable_excess": max(
            (row.detectable_excess for row in rows if row.detectable_excess is not None), default=None
        ),
    }
