"""Single levels of a diagnosis, as functions: operators, windows, a threshold, a layer's output."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..diagnosis import Diagnosis
from ..diagnosis.accepting import accept, data_for
from ..diagnosis.sections import window_rows
from ..diagnosis.thresholds import LARGEST, search
from ..errors import InputError, ModelError
from ..injection import forwards_replaced
from ..operators import expand
from ..points import Point
from ..sites import Layout
from ..specs import DiagnosisSpec, parse_layers

__all__ = [
    "capture_layer_output",
    "find_critical_threshold",
    "operator_level_diagnosis",
    "sliding_window_diagnosis",
]


def operator_level_diagnosis(
    model: nn.Module, test_data: object, noise_scale: float = 0.05, *, tokenizer: Any = None
) -> dict[str, dict[str, Any]]:
    """Operator -> {degradation, sensitivity_score, baseline_acc, noisy_acc, ...}, the most fragile first."""
    run = _diagnosis(model, test_data, tokenizer, DiagnosisSpec(level="operator", noise_scale=noise_scale))
    return {row.name: row.as_json() for row in sorted(run.operators, key=lambda row: row.rank, reverse=True)}


def sliding_window_diagnosis(
    model: nn.Module,
    test_data: object,
    window_size: int = 3,
    noise_scale: float = 0.05,
    step_size: int = 1,
    *,
    tokenizer: Any = None,
) -> dict[str, dict[str, Any]]:
    """Window ("L0-2") -> {start_layer, end_layer, degradation, baseline_acc, noisy_acc, total_injections, ...}."""
    spec = DiagnosisSpec(level="layer", noise_scale=noise_scale, window_size=window_size, step_size=step_size)
    return window_rows(_diagnosis(model, test_data, tokenizer, spec), amplified=False)


def find_critical_threshold(
    model: nn.Module,
    test_data: object,
    target_degradation: float = 0.10,
    *,
    layers: Any = None,
    operators: Any = None,
    tokenizer: Any = None,
) -> float | None:
    """The smallest noise scale, to 0.001, that costs more than the target; None if none up to 0.20 does.

    Noise goes everywhere, or to the layers and operators named.
    """
    spec = DiagnosisSpec(
        target_degradation=target_degradation, layers=parse_layers(layers), operators=expand(operators)
    )
    run = _diagnosis(model, test_data, tokenizer, spec)
    if not run.conclusive:
        clean = run.bench.clean
        raise InputError(
            f"{run.data.name}: the model's accuracy, {clean.accuracy}, is no better than chance, {clean.chance:.3g}; "
            "there is nothing to lose, pass data on which it is"
        )

    def degradation(point: Point) -> float:
        result = run.bench.run(point)
        return 1.0 if result.comparison is None else result.comparison.degradation.value

    (_, scale), _ = search(Point(run.selection, run.noise), degradation, target=target_degradation)
    return scale if scale <= LARGEST else None


def capture_layer_output(model: nn.Module, layer_id: int, inputs: Mapping[str, Tensor] | Tensor) -> Tensor:
    """The hidden state that a layer gives for the inputs, a dictionary of tensors or token ids."""
    layout = Layout.of(model)
    if isinstance(layer_id, bool) or not isinstance(layer_id, int):
        raise InputError(f"layer_id: got {layer_id!r}, expected the index of a layer")
    layout.require(layer_id, what="layer_id")
    kept: list[Any] = []

    def keep(forward: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(forward(*args, **kwargs))
        return kept[-1]

    given = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    with torch.no_grad(), forwards_replaced({layout.blocks[layer_id]: keep}):
        model(**given)
    if not kept:
        raise ModelError(f"layer {layer_id} did not run")
    found = kept[-1] if isinstance(kept[-1], Tensor) else kept[-1][0]
    return found.detach().clone()


def _diagnosis(model: nn.Module, test_data: object, tokenizer: Any, spec: DiagnosisSpec) -> Diagnosis:
    accept(model)
    return Diagnosis(model, data_for(model, test_data, tokenizer), spec, tokenizer=tokenizer)
