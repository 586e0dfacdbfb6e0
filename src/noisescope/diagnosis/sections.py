"""The sections of a report, as plain values, from the stages of a diagnosis."""

from collections.abc import Mapping
from typing import Any

from ..measure.cross_checks import correlate_layer_and_channel_sensitivity
from ..measure.readings import READINGS, read
from ..report.schema import SCHEMA_VERSION
from .advice import critical_operators, recommendations, risk_score
from .by_layer import identify_avalanche_points
from .by_operator import order_panel
from .commands import Commands
from .mapping import SensitivityMap
from .question import environment
from .stages import Diagnosis

__all__ = ["sections", "window_rows"]

TOP_CHANNELS = 5
"""channels named per site"""


def sections(run: Diagnosis, *, name: str, commands: Commands) -> dict[str, Any]:
    """Everything a report holds, level by level; levels that were not asked for are empty."""
    spec = run.spec
    looks_inside = spec.includes("operator") or spec.includes("layer")
    the_map = _map(run) if looks_inside else {}
    operators = run.operators if spec.includes("operator") else []
    windows = window_rows(run) if spec.includes("layer") else {}
    avalanches = identify_avalanche_points(windows, spec.avalanche_threshold) if windows and run.conclusive else []
    channels = run.channels if spec.includes("channel") else None
    metrics = _metrics(run) if looks_inside else {}
    critical = critical_operators(operators)
    score = risk_score(len(critical), len(avalanches), channels.outlier_percentage if channels else 0.0)
    return {
        "schema_version": SCHEMA_VERSION,
        "executive_summary": {
            "critical_operators": critical,
            "num_critical_operators": len(critical),
            "avalanche_points": avalanches,
            "num_avalanche_points": len(avalanches),
            "total_outlier_channels": channels.total_outlier_channels if channels else 0,
            "overall_risk_level": read("risk score", score),
            "risk_score": score,
        },
        "operator_analysis": {
            row.name: row.as_json() for row in sorted(operators, key=lambda row: row.rank, reverse=True)
        },
        "layer_analysis": windows,
        "channel_analysis": channels.as_json(details=True) if channels else {},
        "map": the_map,
        "cross_level": _cross_level(windows, channels.as_json() if channels else {}),
        "recommendations": recommendations(operators, avalanches, channels, commands),
        "metrics": metrics,
        "coverage": _coverage(run),
        "environment": environment(run.model),
        "cost": {"forward_pass_equivalents": run.runs.cost, "by_stage": dict(run.runs.costs)},
        "config": {"model": name, "weights": run.weights, "data": _data(run), **spec.as_json()},
        "readings": {metric: row.as_json() for metric, row in READINGS.items()},
        "next_steps": commands.next_steps(critical, avalanches),
    }


def _map(run: Diagnosis) -> dict[str, Any]:
    if run.map is None or run.checked is None:
        return {"cells": [], "note": f"{run.noise.name} is not random and dense: it has no map"}
    return {
        "noise_scale": run.spec.noise_scale,
        "cells": run.checked.as_json(),
        "agreement": dict(run.checked.agreement),
        "corrections": dict(run.checked.corrections),
        "passes": run.map.passes,
        "channels": _top_channels(run.map),
    }


def _top_channels(found: SensitivityMap) -> dict[str, Any]:
    """For each site the channels in which most of its sensitivity lies, and their share of it."""
    rows = {}
    for site, sums in found.channels.items():
        total = float(sums.relative.sum())
        if total > 0:
            top = sums.relative.topk(min(TOP_CHANNELS, sums.relative.numel()))
            shares = [float(value) / total for value in top.values]
            rows[site] = {"channels": [int(at) for at in top.indices], "shares": shares}
    return rows


def window_rows(run: Diagnosis, *, amplified: bool = True) -> dict[str, dict[str, Any]]:
    """The windows by name; with their amplification, which needs the map."""
    found: dict[str, dict[str, Any]] = {}
    for window, row in run.windows.items():
        found[window.name] = {"start_layer": window.first, "end_layer": window.last, **row.as_json()}
        if amplified:
            more = run.amplification(window)
            found[window.name]["amplification"] = more.as_json() if more else None
    return found


def _metrics(run: Diagnosis) -> dict[str, Any]:
    clean, spec = run.bench.clean, run.spec
    found: dict[str, Any] = {
        "clean": {
            "accuracy": clean.accuracy.as_json(),
            "perplexity": clean.perplexity.as_json(),
            "chance": clean.chance,
            "conclusive": run.conclusive,
        },
        "resumed": run.bench.resumes,
        "attention_steps_difference": run.coverage.steps_difference,
    }
    if spec.includes("operator"):
        found["together"] = {row.name: row.as_json() for row in run.together}
        found["order"] = order_panel(run.operators)
    if spec.includes("layer"):
        found["groups"] = {
            name: {"start_layer": window.first, "end_layer": window.last, **row.as_json()}
            for name, (window, row) in run.groups.items()
        }
        found["layers"] = {str(layer): _layer(run, layer) for layer in run.layers}
    found["critical_thresholds"] = {name: threshold.as_json() for name, threshold in run.thresholds.items()}
    found["agreement"] = run.agreement.as_json() if run.agreement is not None else None
    found["failed"] = dict(run.failures)
    return found


def _layer(run: Diagnosis, layer: int) -> dict[str, Any] | None:
    if layer in run.single_layers:
        return run.single_layers[layer].as_json() | {"how": "measured"}
    kl = run.layer_kl(layer)
    return {"kl": kl.as_json(), "how": "map"} if kl is not None else None


def _cross_level(windows: Mapping[str, Any], channels: Mapping[str, Any]) -> dict[str, Any]:
    measured = {name: row for name, row in windows.items() if "degradation" in row}
    if not measured or not channels:
        return {}
    rows, r = correlate_layer_and_channel_sensitivity(measured, channels)
    return {"rows": rows, "outliers_vs_sensitivity": r, "expected": "r > 0.6"}


def _coverage(run: Diagnosis) -> dict[str, Any]:
    found = run.coverage
    return {
        "layers": found.layers,
        "sites": {operator: found.count(operator) for operator in found.operators},
        "in_steps": {operator: n for operator in found.operators if (n := found.count(operator, in_steps=True))},
        "hidden": dict(found.hidden_operators),
        "observer": {"bit_identical": run.unchanged, "steps_difference": found.steps_difference},
    }


def _data(run: Diagnosis) -> dict[str, Any]:
    data = run.data
    return {
        "name": data.name,
        "task": data.task.name if data.task is not None else "next token",
        "rows": data.rows,
        "predicted_tokens": data.predicted_tokens,
        "longest_row": max(batch.input_ids.shape[1] for batch in data),
        "fingerprint": data.fingerprint,
        "calibration": {"name": run.calibration.name, "fingerprint": run.calibration.fingerprint},
    }
