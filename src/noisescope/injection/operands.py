"""Operands, watched for the gradients that their operator makes for them: these belong to the operator's site."""

from collections.abc import Callable
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from .gradients import visit_gradient
from .places import Place, Places
from .scope import Frame, Scope

__all__ = ["OperandWatch"]


class OperandWatch:
    """Puts a visitor on operands, who shows their gradients to the observer as long as `is_open` says so."""

    def __init__(self, scope: Scope, places: Places, is_open: Callable[[], bool]) -> None:
        self._scope, self._places, self._is_open = scope, places, is_open

    def of_function(
        self, places: tuple[Place, ...], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a function, watched; one that is overwritten in place stays itself."""
        place = next(place for place in places if place.backward)
        if kwargs.get("inplace") or getattr(function, "__name__", "").endswith("_"):
            return (args[0], *self._all(place, args[1:])), kwargs
        watched: tuple[tuple[Any, ...], dict[str, Any]] = self._all(place, (args, kwargs))
        return watched

    def of_module(self, frame: Frame, place: Place, args: Any) -> Any:
        """The arguments of a module that is an operator, unless it spells that operator as a function inside."""
        return self._all(place, args, unless=frame)

    def of_norm(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of any function: inside a hand-written norm its weight is watched too."""
        frame = self._scope.current
        if frame is None or frame.operator is None:
            return args
        own = {id(parameter) for parameter in frame.module.parameters(recurse=False) if parameter.requires_grad}
        place = self._places.at(frame, frame.operator)
        if not place.backward or not any(id(_stands_for(given)) in own for given in args):
            return args
        return tuple(
            self._parameter(place, given, part=1 + position, unless=frame) if id(_stands_for(given)) in own else given
            for position, given in enumerate(args)
        )

    def _all(self, place: Place, operands: Any, *, unless: Frame | None = None) -> Any:
        parts = count()
        return tree_map(lambda operand: self._one(place, operand, part=next(parts), unless=unless), operands)

    def _one(self, place: Place, operand: Any, *, part: int, unless: Frame | None) -> Any:
        if not isinstance(operand, Tensor) or not operand.requires_grad or not operand.is_floating_point():
            return operand
        site, step = place.site(self._places.next_index(place), "backward"), self._scope.step

        def visit(grad: Tensor) -> Tensor:
            if not self._is_open() or (unless is not None and unless.spelled):
                return grad
            shown: Tensor = self._places.observer.backward(site, grad, step=step, part=part)
            return shown

        return visit_gradient(operand, visit)

    def _parameter(self, place: Place, parameter: Tensor, *, part: int, unless: Frame) -> Tensor:
        """The parameter, watched; it says what it stands for, so that a watch outside this one knows it again."""
        watched: Tensor = self._one(place, parameter, part=part, unless=unless)
        watched.stands_for = _stands_for(parameter)  # type: ignore[attr-defined]
        return watched


def _stands_for(value: Any) -> Any:
    """The parameter that a watched tensor stands for, or the value itself."""
    return getattr(value, "stands_for", value) if isinstance(value, Tensor) else value
