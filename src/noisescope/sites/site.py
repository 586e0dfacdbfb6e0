"""The name of a place where a value is computed."""

from dataclasses import dataclass

from ..specs import Layer, Phase

__all__ = ["Site"]


@dataclass(frozen=True)
class Site:
    """Layer, operator, module path, call index and direction of one value.

    `layer` is a block's index, `embed`, `final_norm` or `head`, or None for a call outside any model.
    `call` counts the operator's calls by that module within one forward pass of the model.

    >>> Site(7, "softmax", "model.layers.7.self_attn").name
    'model.layers.7.self_attn.softmax.0.forward'
    """

    layer: Layer | None
    operator: str
    module: str
    call: int = 0
    phase: Phase = "forward"

    @property
    def name(self) -> str:
        """The written form, unique within a model."""
        return ".".join(filter(None, (self.module, self.operator, str(self.call), self.phase)))

    def __str__(self) -> str:
        return self.name
