"""`ChannelOutlierDetector`: the documented name, a few lines over `ActivationCapture` and `smooth`."""

from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..diagnosis import ActivationCapture, ChannelReport
from ..diagnosis.channels import THRESHOLD
from ..errors import InputError
from ..measure.batches import Batch, EvaluationSet
from ..smoothing import Smoothed, smooth

__all__ = ["ChannelOutlierDetector"]


class ChannelOutlierDetector:
    """Outlier channels of a model on calibration data.

    Args:
        model: any module with a stack of blocks; it runs as it is, in training mode if it is in that.
        calibration_data: an evaluation set, or batches as dicts of tensors.
        quantile_threshold: the ratio to the median above which a channel is an outlier.
        layer_patterns: as for `ActivationCapture`.
    """

    def __init__(
        self,
        model: nn.Module,
        calibration_data: EvaluationSet | Iterable[Mapping[str, Any]],
        quantile_threshold: float = THRESHOLD,
        *,
        layer_patterns: str | Iterable[str] | None = None,
    ) -> None:
        self.model = model
        self.calibration_data = calibration_data
        self.quantile_threshold = quantile_threshold
        self.layer_patterns = layer_patterns
        self._activations: ActivationCapture | None = None

    def collect_statistics(self) -> None:
        """Runs the model over the data; what was collected before is forgotten."""
        self._activations = self._collect()

    def _collect(self) -> ActivationCapture:
        activations = ActivationCapture(self.model, self.layer_patterns, threshold=self.quantile_threshold)
        with activations, torch.no_grad():
            for inputs in _inputs(self.model, self.calibration_data):
                self.model(**inputs)
        if not activations.captured.steps:
            raise InputError("calibration_data: no batches; expected an evaluation set or dicts of tensors")
        return activations

    def get_report(self) -> dict[str, Any]:
        """`summary` and `per_layer`, as plain values; collects first if that was not done."""
        return self.report().as_json()

    def report(self) -> ChannelReport:
        """The same with persistence and kinds."""
        self._activations = self._activations or self._collect()
        return self._activations.report()

    def apply_smoothquant_scaling(self, alpha: float = 0.5) -> Smoothed:
        """Scales the model's channels by SmoothQuant with this alpha, in place; what was done.

        The function stays the same up to rounding. What was collected is forgotten: channels are other ones now. To get
        a copy, an alpha for each group, or a file, use `noisescope.smooth`.
        """
        found = smooth(self.model, self.calibration_data, alpha=alpha, inplace=True)
        self._activations = None
        return found


def _inputs(model: nn.Module, data: EvaluationSet | Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Keyword arguments of one forward pass after the other, where the model's weights are."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    plain = {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise InputError(f"calibration_data: got {type(data).__name__}, expected an evaluation set or dicts of tensors")
    for batch in data:
        if isinstance(batch, Batch):
            yield batch.inputs(device)
        elif isinstance(batch, Mapping):
            moved = {name: given.to(device) if isinstance(given, Tensor) else given for name, given in batch.items()}
            yield plain | moved
        else:
            raise InputError(f"calibration_data: got {type(batch).__name__} as a batch, expected a dict of tensors")
