"""Plans as the method documents spell them: a migration, and bits by the threshold rule."""

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..diagnosis import diagnose
from ..planning import assign_bits, average_bits, plan_migration
from ..report.migration.words import check
from ..specs import Layer
from .profiles import losses_by_layer, plain

__all__ = ["assign_precision", "generate_mixed_precision_config", "plan_hardware_migration"]


def plan_hardware_migration(
    model: nn.Module, test_data: object, calibration_data: object = None, *, tokenizer: Any = None
) -> dict[str, Any]:
    """{priority_1_layers, priority_2_layers, priority_3_layers, recommendations: {precision, validation, fallback}}.

    Runs a diagnosis; where there is one, `plan_migration(report)` is the same without running. Layers are indices of
    blocks, `embed`, `final_norm` and `head`, the riskiest first.
    """
    report = diagnose(model, test_data, calibration_data=calibration_data, tokenizer=tokenizer)
    groups = {f"priority_{group['priority']}": group for group in plan_migration(report).sections["priorities"]}
    recommendations = {
        "precision": {name: group["precision"] for name, group in groups.items()},
        "validation": {name: check(group) for name, group in groups.items()},
        "fallback": {name: group["fallback"] for name, group in groups.items()},
    }
    return {f"{name}_layers": group["layers"] for name, group in groups.items()} | {"recommendations": recommendations}


def generate_mixed_precision_config(
    sensitivity_profile: Mapping[Any, Any], target_avg_bits: float = 6, *, sizes: Mapping[Layer, float] | None = None
) -> dict[Layer, int]:
    """{layer: bits} by the documented thresholds; `planning.threshold` has the rule.

    Where the rule cannot come down to the target it comes as close as it can, with a warning: layers that lose more
    than 10% keep their bits whatever is asked.

    Args:
        sensitivity_profile: layer -> degradation, layer -> a row that has one, or the windows of a report.
        target_avg_bits: bits on average, at most.
        sizes: layer -> number of weights, for a weighted average.
    """
    return _assigned(sensitivity_profile, target_avg_bits, sizes)


def assign_precision(
    sensitivity_profile: Mapping[Any, Any], target_avg_bits: float = 6, *, sizes: Mapping[Layer, float] | None = None
) -> dict[Layer, int]:
    """The same as `generate_mixed_precision_config`, by its other name."""
    return _assigned(sensitivity_profile, target_avg_bits, sizes)


def _assigned(
    profile: Mapping[Any, Any], target_avg_bits: float, sizes: Mapping[Layer, float] | None
) -> dict[Layer, int]:
    target = plain(target_avg_bits)
    bits = assign_bits(losses_by_layer(profile), target=target, sizes=sizes, closest=True)
    if (average := average_bits(bits, sizes)) > target:
        warnings.warn(
            f"target_avg_bits: got {target:g}, the rule comes down to {average:.3g}, as layers that lose more than 10% "
            "keep their bits; `noisescope plan precision` trades all layers off",
            stacklevel=3,
        )
    return bits
