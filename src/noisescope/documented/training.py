"""Adaptive noise as the method documents spell it: switched on for the thread, by layer."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from .. import noisy_ops
from ..errors import InputError, quoted
from ..sites import Layout
from ..specs import Layer, check_scale
from ..training import AdaptiveNoise
from .profiles import losses_by_layer

__all__ = ["AdaptiveAQN"]


class AdaptiveAQN:
    """Half of the base scale for layers that lose more than 15% of the accuracy, twice of it below 5%.

    Noise goes into what operators compute, on this thread, until `disable_adaptive_noise`. For a training use
    `NoiseCallback(OperatorNoise(base, adaptive=AdaptiveNoise.from_report(report)))`, which is bound to one model, and
    `NormWeightNoise` for noise in norm weights.

    Args:
        model: the model that the profile is of.
        sensitivity_profile: layer -> degradation, layer -> a row that has one, or the windows of a report.
        base_scale: of a layer that loses 5 to 15%.
    """

    def __init__(self, model: nn.Module, sensitivity_profile: Mapping[Any, Any], *, base_scale: float = 0.05) -> None:
        self.base_scale = check_scale(base_scale, what="base_scale")
        self.adaptive = AdaptiveNoise.from_profile(losses_by_layer(sensitivity_profile))
        self.adaptive.check(model, layers=len(Layout.of(model).blocks))
        self._model = model

    def get_layer_noise_scale(self, layer_id: Layer) -> float:
        """The scale of one layer."""
        scales = self.adaptive.scales(self.base_scale)
        if layer_id not in scales:
            raise InputError(f"layer_id: got {quoted(layer_id)}, expected one of {' '.join(map(str, scales))}")
        return scales[layer_id]

    def enable_adaptive_noise(self) -> dict[Layer, float]:
        """Switches the noise on, on this thread, in the layers of the profile; their scales."""
        scales = self.adaptive.scales(self.base_scale)
        noisy_ops.register_layer_hooks(self._model)
        noisy_ops.set_selective_layers(list(scales))
        noisy_ops.set_per_layer_scales(scales)
        noisy_ops.enable_noisy_ops(self.base_scale)
        return scales

    def disable_adaptive_noise(self) -> None:
        """Switches it off again, and forgets what was set for the layers."""
        noisy_ops.disable_noisy_ops()
        noisy_ops.set_selective_layers(None)
        noisy_ops.set_per_layer_scales(None)
