"""`ActivationCapture`: the documented name, a few lines over `capture` and `detect`.

    with ActivationCapture(model, ["self_attn.o_proj", "mlp.down_proj"]) as activations:
        model(**batch)
    activations.detect_outliers(threshold=10.0)

Despite the names of its methods nothing is attached to the model.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from torch import nn

from ..capturing import Capture, capture
from ..capturing.session import DEFAULT_BUDGET
from ..errors import NothingMatched
from ..sites import Layout
from ..sites.patterns import pattern
from ..specs import parse_names
from .channel_report import ChannelReport
from .channels import THRESHOLD, detect

__all__ = ["ActivationCapture"]

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
