"""`MetricsDashboard`: the metrics of one model under noise, and of two devices' activations where these are given."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..capturing import capture
from ..diagnosis import Diagnosis
from ..diagnosis.accepting import accept, data_for
from ..diagnosis.rows import Row
from ..errors import InputError, NonFinite
from ..injection import inject
from ..measure.hessian import next_token_loss
from ..measure.metrics import compare_values, compute_gradient_ratio, compute_sparsity
from ..measure.readings import dashboard_risk, read
from ..points import Point
from ..specs import DiagnosisSpec

__all__ = ["MetricsDashboard"]

_ACTIVATIONS = ("silu", "gelu")
_NAMES = {
    "degradation": "relative degradation",
    "sensitivity_score": "sensitivity score",
    "noise_tolerance_index": "noise tolerance index",
    "snr_db": "SNR",
    "gradient_ratio": "gradient ratio",
    "sparsity": "sparsity",
    "mae": "MAE",
    "mape": "MAPE",
    "correlation": "Pearson r",
}
"""keys of the dashboard that have a reading"""


class MetricsDashboard:
    """Metrics of a model with noise on everything at one scale, as three dictionaries: primary, secondary, hardware."""

    def __init__(self, noise_scale: float = 0.05, *, tokenizer: Any = None) -> None:
        self.noise_scale, self.tokenizer = noise_scale, tokenizer
        self.metrics: dict[str, dict[str, Any]] = {}

    def compute_all_metrics(
        self,
        model: nn.Module,
        test_data: object,
        gpu_activations: Tensor | Mapping[str, Tensor] | None = None,
        npu_activations: Tensor | Mapping[str, Tensor] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """{primary, secondary, hardware}; hardware is empty without the activations of two devices."""
        accept(model)
        hardware = _hardware(gpu_activations, npu_activations)
        data = data_for(model, test_data, self.tokenizer)
        run = Diagnosis(model, data, DiagnosisSpec(noise_scale=self.noise_scale), tokenizer=self.tokenizer)
        result = run.bench.run(Point(run.selection, run.noise))
        if result.comparison is None:
            raise NonFinite(result.finding.failure)
        row = Row("all", result).as_json()
        primary = ("degradation", "sensitivity_score", "noise_tolerance_index", "baseline_acc", "noisy_acc")
        self.metrics = {
            "primary": {key: row[key] for key in primary} | {"kl": row["kl"]["value"]},
            "secondary": {
                "snr_db": row["snr_db"],
                "flip_rate": row["flip_rate"]["value"],
                "perplexity": row["perplexity"]["value"],
                "gradient_ratio": _gradient_ratio(run),
                "sparsity": _sparsity(run),
            },
            "hardware": hardware,
        }
        return self.metrics

    def get_risk_assessment(self) -> dict[str, Any]:
        """The documented points for degradation and MAPE, and their reading."""
        found = self._computed
        score = dashboard_risk(found["primary"]["degradation"], found["hardware"].get("mape"))
        return {"score": score, "level": read("dashboard risk", score)}

    def print_dashboard(self) -> None:
        """All metrics with their readings, on standard output."""
        lines = []
        for group, figures in self._computed.items():
            lines += [group] if figures else []
            for key, value in figures.items():
                word = read(_NAMES[key], value) if key in _NAMES else ""
                lines.append(f"  {key:<22} {'none' if value is None else f'{value:.4g}':>10}  {word}".rstrip())
        risk = self.get_risk_assessment()
        sys.stdout.write("\n".join([*lines, f"risk: {risk['level']} ({risk['score']:g})"]) + "\n")

    @property
    def _computed(self) -> dict[str, dict[str, Any]]:
        if not self.metrics:
            raise InputError("there are no metrics yet; call compute_all_metrics() first")
        return self.metrics


def _gradient_ratio(run: Diagnosis) -> float | None:
    """Norm of the loss's gradient with noise in the forward pass over that without, on the first batch."""
    parameters = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    found = []
    for noisy in (False, True):
        with inject(run.model, run.noise) if noisy else nullcontext():
            loss = next_token_loss(run.model, run.data.batches[0])
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        found.append([grad for grad in grads if grad is not None])
    return compute_gradient_ratio(*found)


def _sparsity(run: Diagnosis) -> float | None:
    """Share of almost-zero values that the activation functions give on the first batch; None if there are none."""
    operators = [name for name in _ACTIVATIONS if name in run.coverage.operators]
    if not operators:
        return None
    device = next(run.model.parameters()).device
    with torch.no_grad(), capture(run.model, operators=operators, statistics=False, outputs=True) as seen:
        run.model(**run.data.batches[0].inputs(device))
    return float(np.mean([compute_sparsity(value) for values in seen.outputs.values() for value in values]))


def _hardware(good: Any, suspect: Any) -> dict[str, Any]:
    if good is None and suspect is None:
        return {}
    sides = [side if isinstance(side, Mapping) else {"": side} for side in (good, suspect) if side is not None]
    if len(sides) < 2 or not sides[0] or set(sides[0]) != set(sides[1]):
        names = " and ".join(" ".join(map(str, side)) or "a tensor" for side in sides)
        raise InputError(f"gpu_activations, npu_activations: got {names}, expected both, with the same names")
    pairs = [(sides[0][name], sides[1][name]) for name in sides[0]]
    for name in sides[0]:
        shapes = [list(side[name].shape) for side in sides]
        if shapes[0] != shapes[1]:
            at = f"{name}: " if name else ""
            raise InputError(f"npu_activations: {at}got shape {shapes[1]}, expected {shapes[0]} as gpu_activations")
    flat = [torch.cat([part[side].detach().flatten().double().cpu() for part in pairs]) for side in (0, 1)]
    return asdict(compare_values(*flat))
