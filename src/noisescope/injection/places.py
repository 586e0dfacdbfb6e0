"""Places: one operator of one module in one layer, and whether an observer wants to see it."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..operators import OPERATORS
from ..sites import Site
from ..specs import Layer, Phase
from .calls import Call
from .recognising import same_rows, tensors
from .scope import Frame, Scope

__all__ = ["CallObserver", "Observer", "Place", "Places"]


class Observer(Protocol):
    """Who looks at values, and may replace them.

    One with a method `before(sites, operands, *, step)` is also shown what each value is computed from, just before
    it is: the tensors given, without parameters, factors before the addend of `addmm` and `baddbmm`. It may not
    replace these. Of a hand-written norm or activation it sees the positional arguments, once the module has run.

    One with a method `too_late()` is told, after it was closed, when reentrant checkpointing is about to recompute
    values that it saw: it sees them no more.
    """

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True to be shown the values of this place. Asked once per place and remembered."""
        ...

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        """The value to go on with.

        `sites` are the wanted ones that this value belongs to: one, or `attention` and its second product.
        `owned`: nobody else holds this tensor, it may be changed in place.
        """
        ...

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The gradient to go on with; `part` counts the operator's inputs."""
        ...


class CallObserver(Protocol):
    """Who looks at whole calls, of any function and not only of the catalogue's, and may replace their values."""

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True to be shown the calls of this place. Asked once per place and remembered; gradients are not shown."""
        ...

    def after(self, call: Call, value: Any) -> Any:
        """The value to go on with, of a call that has just been made."""
        ...


@dataclass(slots=True)
class Place:
    """One operator of one module in one layer."""

    layer: Layer | None
    operator: str
    module: str
    forward: bool
    """whether its values are wanted"""
    backward: bool
    """whether its gradients are"""

    def site(self, index: int, phase: Phase = "forward") -> Site:
        """One call of it."""
        return Site(self.layer, self.operator, self.module, index, phase)


class Places:
    """All places met so far, each asked for once."""

    def __init__(self, scope: Scope, observer: Observer | CallObserver) -> None:
        self.observer: Any = observer
        self._scope = scope
        self._known: dict[tuple[str, str, Layer | None], Place] = {}

    def forget(self) -> None:
        """The observer has changed its mind, and will be asked again."""
        self._known.clear()

    def at(self, frame: Frame | None, operator: str) -> Place:
        """The place of an operator that is computed now."""
        layer = self._scope.layer_of(frame, operator)
        path = frame.path if frame is not None else ""
        place = self._known.get((path, operator, layer))
        if place is None:
            wanted = [self.observer.wants(layer, operator, path, phase) for phase in ("forward", "backward")]
            place = self._known[path, operator, layer] = Place(layer, operator, path, *wanted)
        return place

    def of(self, frame: Frame | None, operator: str, args: Any, kwargs: dict[str, Any]) -> tuple[Place, ...]:
        """The places that a value belongs to: attention's second product is the attention's value too."""
        if OPERATORS[operator].product and frame is not None and frame.softmax is not None:
            given = tensors(args, kwargs)
            if given and same_rows(given[0].shape, frame.softmax):
                frame.softmax = None
                return self.at(frame, "attention"), self.at(frame, operator)
        return (self.at(frame, operator),)

    def next_index(self, place: Place) -> int:
        """How often the operator was called there in this pass."""
        return self._scope.calls.get((place.module, place.operator), 0)
