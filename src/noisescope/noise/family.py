"""What a noise model is, and the registry of all of them.

A noise model owns three things: its scale, how to disturb a tensor in place, and how its scale can be read back from
what really happened (the dose). It never sees a model, a site or a layer, only a tensor and a key.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from ..errors import InputError, unknown_name
from ..keys import Key
from ..specs import known

__all__ = ["NOISES", "Measured", "Noise", "make_noise", "register"]


@dataclass(frozen=True)
class Measured:
    """What was seen to happen at a place, summed over the elements that were looked at."""

    elements: int
    """elements looked at: all of them for sparse noise, an even sample of each call otherwise"""
    finite: int
    """of these, how many were finite before and after: the sums are over them"""
    nonzero: int
    """of these, how many were not zero before"""
    changed: int
    """of all elements looked at, how many changed a bit"""
    abs_value: float
    abs_error: float
    sq_error: float
    sq_ratio: float
    """sum of (error / value)^2 over the non-zero elements"""
    max_ratio: float
    sq_full: float = 0.0
    """sum of squares of the errors that scale 1 would have made, of noise that tells them"""

    @property
    def mean_rel_error(self) -> float:
        """Mean abs error over mean abs value: the realised relative error."""
        return self.abs_error / self.abs_value if self.abs_value else 0.0


@runtime_checkable
class Noise(Protocol):
    """A noise model. Scale 0 must be the identity; the engine then does not even call `disturb_`."""

    name: ClassVar[str]
    sparse: ClassVar[bool]
    """True when few elements change, so that the dose is measured on all of them and not on a sample."""

    @property
    def scale(self) -> float:
        """How much, in the unit of this noise model."""
        ...

    def disturb_(self, value: Tensor, scale: float, key: Key) -> Tensor | None:
        """Disturb `value` in place at `scale`, drawing from `key` and nothing else.

        Noise whose size is not its scale's but the value's own affair, such as rounding, gives the error that it makes
        at scale 1.
        """
        ...

    def dose(self, seen: Measured) -> float:
        """The scale that the disturbance really had."""
        ...


NOISES: dict[str, type] = {}
_N = TypeVar("_N", bound=type)


def register(noise: _N) -> _N:
    """Class decorator: makes a noise model known by its `name`; a name can be taken only once."""
    name = noise.name  # type: ignore[attr-defined]
    if name in NOISES:
        raise InputError(f'noise "{name}" is registered already, by {NOISES[name].__qualname__}')
    NOISES[name] = noise
    known.know(known.ERROR_TYPES, name)
    return noise


def make_noise(name: str, scale: float, **options: object) -> Noise:
    """A noise model by its registered name, as the command line and configurations give it.

    >>> make_noise("bit_flip", 1e-4, field="sign")
    BitFlip(scale=0.0001, field='sign')
    """
    if name not in NOISES:
        raise unknown_name("error type", name, NOISES)
    try:
        noise: Noise = NOISES[name](scale, **options)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from None
    return noise
