"""Foreign but healthy arithmetic: devices that are built otherwise than this one, played by it at every operator.

    with foreign("sequential sums", model):
        verdict = locate(model, inputs)

One file a family of operators. Every result is computed in float32 (float64 for that dtype) and cast once, as hardware
with a wide accumulator does. `FOREIGN` are healthy; `MODES` are less precise, and must be named, not accused.
"""

from .attention import ONLINE, PREMULTIPLIED, WHOLE
from .device import Foreign, Variant, foreign
from .elementwise import ELEMENTWISE
from .norms import NORMS
from .products import ORDERS, REDUCED
from .range import FLUSHING
from .softmax import SOFTMAXES
from .weights import quantised

__all__ = ["FOREIGN", "MODES", "Foreign", "Variant", "foreign_device", "quantised"]

FOREIGN: dict[str, Variant] = {
    row.name: row for row in (*ORDERS, *SOFTMAXES, *ELEMENTWISE, *NORMS, ONLINE, WHOLE, PREMULTIPLIED, *FLUSHING)
}
"""name -> a healthy way to compute"""

MODES: dict[str, Variant] = {row.name: row for row in REDUCED}
"""name -> a mode of less precision that people choose, or get by default"""


def foreign_device(*names: str, model: object) -> Foreign:
    """A device that computes in all of these ways; a context manager."""
    return foreign([(FOREIGN | MODES)[name] for name in names], model)
