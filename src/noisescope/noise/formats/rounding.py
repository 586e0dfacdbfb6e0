"""Number formats as noise: the error Q(t) - t, at a site of a running model, straight through for gradients.

Scale 1 is the format itself; a scale below 1 adds that share of its error, so that a second-order effect can be told
from a larger one. What the format does at scale 1 is the yardstick of the dose.
"""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from torch import Tensor

from ...errors import InputError
from ...keys import Key
from ...specs import check_scale
from ..family import Measured, register
from .format import FORMATS, Format, parse_format

__all__ = ["NumberFormat", "format_noise"]


@dataclass(frozen=True)
class NumberFormat:
    """Values as a number format holds them, in blocks along the last dimension.

    `options` are those of `parse_format`: `make_noise("int4", 1.0, options="group=32,stochastic")`.
    """

    scale: float = 1.0
    options: str = ""
    name: ClassVar[str]
    sparse: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if check_scale(self.scale) > 1:
            raise InputError(f"{self.name}: got scale {self.scale:g}, expected at most 1, the format itself")
        object.__setattr__(self, "scale", float(self.scale))
        object.__setattr__(self, "options", str(self.format).partition(":")[2])

    @property
    def format(self) -> Format:
        """What rounds."""
        return parse_format(f"{self.name}:{self.options}" if self.options else self.name)

    @property
    def draws(self) -> bool:
        """Whether what happens depends on the key."""
        return self.format.rounding == "stochastic"

    def disturb_(self, value: Tensor, scale: float, key: Key) -> Tensor:
        """Round `value` in place; the error that scale 1 makes is what the dose is measured by."""
        rounded = self.format.round(value, key=key)
        error = rounded - value
        if scale == 1:
            value.copy_(rounded)
        else:
            value.add_(error, alpha=scale)
        return error

    def dose(self, seen: Measured) -> float:
        """Root mean square error over that of scale 1."""
        return sqrt(seen.sq_error / seen.sq_full) if seen.sq_full else 0.0


for _name in FORMATS:
    register(
        type(_name.upper(), (NumberFormat,), {"name": _name, "__module__": __name__, "__doc__": NumberFormat.__doc__})
    )


def format_noise(form: str | Format, scale: float = 1.0) -> NumberFormat:
    """A number format as a noise model.

    >>> format_noise("mxfp4").name
    'mxfp4'
    """
    from ..family import make_noise

    name, _, options = str(parse_format(form)).partition(":")
    noise = make_noise(name, scale, options=options)
    assert isinstance(noise, NumberFormat)
    return noise
