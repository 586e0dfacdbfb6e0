"""What noise a training may have: a kind of noise says where it goes, and can be put on a model step by step."""

from contextlib import AbstractContextManager
from typing import ClassVar, Protocol, runtime_checkable

from torch import nn

from .ledger import Ledger
from .schedules import Schedule

__all__ = ["Applying", "TrainingNoise"]


class Applying(Protocol):
    """Noise of one kind on one model. Between two steps there is none."""

    ledger: Ledger

    def noisy(self, step: int, scale: float, *, trial: int) -> AbstractContextManager[None]:
        """The model computes with noise of that scale until the block ends, however it ends.

        `trial` is what draws depend on. Entered again with the same one, it goes on: the next forward passes of an
        accumulated gradient draw anew.
        """
        ...

    def check(self, called: nn.Module) -> None:
        """Raises for a model that the noise would not reach; `called` is the model, maybe in a wrapper."""
        ...

    def refuse_silence(self) -> None:
        """Raises if nothing was disturbed so far; called at the end of the first step whose scale is above 0."""
        ...


@runtime_checkable
class TrainingNoise(Protocol):
    """A kind of noise with its schedule: `OperatorNoise`, `NormWeightNoise`, or your own."""

    kind: ClassVar[str]
    """in front of the names it is logged by"""

    @property
    def scheduled(self) -> Schedule:
        """How large it is, as training goes on."""
        ...

    def on(self, model: nn.Module, *, rank: int = 0) -> Applying:
        """The noise on one model, of the process of that rank; an error if it does not fit the model."""
        ...
