"""Output heads that write their own backward pass, as TRL's trainers put on a model: noise must stay out of them.

Such a head multiplies by itself, in chunks, and computes the logits again for the gradient. Noise in the first of
these would not be in the second, and their difference is a wrong gradient.
"""

import logging

from torch import nn

from ..errors import InputError
from ..sites import Layout
from ..specs import OUTSIDE, Layer

__all__ = ["has_fused_head", "without_head"]

_MODULE = "trl."
_HEAD = OUTSIDE[-1]

log = logging.getLogger("noisescope.training")


def has_fused_head(model: nn.Module) -> bool:
    """True if TRL has replaced the forward of the model, or of one inside it.

    The replacement passes itself off as the original by name; what it sees as global is TRL's.
    """
    forwards = (getattr(vars(module).get("forward"), "__func__", None) for module in model.modules())
    homes = (getattr(forward, "__globals__", {}).get("__name__", "") for forward in forwards)
    return any(home.startswith(_MODULE) for home in homes)


def without_head(layers: tuple[Layer, ...] | None, layout: Layout) -> tuple[Layer, ...]:
    """The layers but for the head, which is said in the log; an error if nothing is left."""
    asked = (OUTSIDE[0], *range(len(layout.blocks)), *OUTSIDE[1:]) if layers is None else layers
    left = tuple(layer for layer in asked if layer != _HEAD)
    if not left:
        raise InputError("layers: got head alone, which writes its own backward pass here (TRL's fused head)")
    if len(left) < len(asked):
        log.warning("no noise in the head: it writes its own backward pass (TRL's fused head), which would miss it")
    return left
