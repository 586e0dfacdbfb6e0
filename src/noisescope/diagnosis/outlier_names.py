"""`ActivationCapture` and `ChannelOutlierDetector`: the documented names, a few lines over `capture` and `detect`.

    with ActivationCapture(model, ["self_attn.o_proj", "mlp.down_proj"]) as activations:
        model(**batch)
    activations.detect_outliers(threshold=10.0)

Despite the names of its methods nothing is attached to the model.
"""

from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ..capturing import Capture, capture
from ..capturing.session import DEFAULT_BUDGET
from ..errors import InputError, NothingMatched
from ..measure.batches import Batch, EvaluationSet
from ..sites import Layout
from ..sites.patterns import pattern
from ..specs import parse_names
from .channel_report import ChannelReport
from .channels import THRESHOLD, detect

__all__ = ["ActivationCapture", "ChannelOutlierDetector"]

_OPERATORS = ("linear", "layer_norm", "rms_norm", "silu", "gelu", "embedding")
"""what a pattern means: operators whose value is laid out by token and channel"""


class ActivationCapture:
    """Channel statistics of chosen modules between `register_hooks` and `remove_hooks`, or inside a `with` block.

    Args:
        model: any module with a stack of blocks.
        layer_patterns: parts of module paths ("mlp.down_proj"), globs, or `re:` expressions for whole paths; each must
            match. None means the attention output, MLP down and gate projections.
        threshold: the ratio at which persistence is counted.
        budget_bytes: memory that the statistics may take.
    """

    def __init__(
        self,
        model: nn.Module,
        layer_patterns: str | Iterable[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        budget_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        modules = _globs(model, layer_patterns)
        self.captured: Capture = capture(
            model,
            modules=modules,
            operators=None if modules is None else _OPERATORS,
            persistence=threshold,
            budget_bytes=budget_bytes,
        )
        self._open = False

    def register_hooks(self) -> None:
        """Starts looking."""
        self.captured.__enter__()
        self._open = True

    def remove_hooks(self) -> None:
        """Stops looking, if it was; raises if the model ran and no module that was asked for did."""
        self.__exit__(None, None, None)

    def __enter__(self) -> "ActivationCapture":
        self.register_hooks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self._open = False
            self.captured.__exit__(kind, error, trace)

    def detect_outliers(self, threshold: float = THRESHOLD) -> dict[str, dict[str, Any]]:
        """Module path -> outlier_indices, num_outliers, total_channels, outlier_percentage, outlier_ratios, ..."""
        found: dict[str, dict[str, Any]] = self.report(threshold).as_json()["per_layer"]
        return found

    def report(self, threshold: float | None = None) -> ChannelReport:
        """The same with persistence and kinds; None means the threshold that these were counted at."""
        return detect(self.captured, threshold=threshold)


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


def _globs(model: nn.Module, layer_patterns: str | Iterable[str] | None) -> list[str] | None:
    """Patterns of whole paths, from parts of them; each must match."""
    given = parse_names(layer_patterns, what="layer_patterns")
    if given is None:
        return None
    paths = Layout.of(model).paths.values()
    found = [text if text.startswith("re:") or any(sign in text for sign in "*?[") else f"*{text}*" for text in given]
    for text, whole in zip(given, found, strict=True):
        if not any(map(pattern(whole), paths)):
            raise NothingMatched(f'layer_patterns: "{text}" matches no module; `noisescope sites` lists them')
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
