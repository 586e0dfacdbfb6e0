"""What a watch does with one call: computes it, counts it at its places, and shows its value to the observer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..operators import OPERATORS
from ..sites import Site
from .attention import attention_in_steps, sdpa_arguments, steps_difference
from .calls import Call, arguments_kept, compute, plain_name, writes
from .compiled import compiled, under_compile
from .gradients import take_value
from .operands import OperandWatch
from .places import Place, Places
from .recognising import is_fresh, is_residual, operands, uses_own_parameter
from .scope import Frame, Scope, by_keyword

__all__ = ["Showing"]


class Showing:
    """Computes calls and shows them.

    `loose`: calls outside any model too. `in_steps`: all attention is computed in steps; `whole`: none is, whatever
    the observer wants of its steps. `is_inner` says whether another watch stands outside this one.
    """

    def __init__(
        self,
        scope: Scope,
        places: Places,
        operands_watch: OperandWatch,
        *,
        loose: bool,
        in_steps: bool,
        whole: bool,
        is_inner: Callable[[], bool],
    ) -> None:
        self.steps_difference: dict[str, Tensor] = {}
        """module path -> largest abs difference of attention in steps to the fused kernel, on its first row"""
        self._scope, self._places, self._operands = scope, places, operands_watch
        self._loose, self._in_steps, self._whole, self._is_inner = loose, in_steps, whole, is_inner
        self._shows_operands = hasattr(places.observer, "before")
        self._shows_calls = hasattr(places.observer, "after")

    # --- modules ------------------------------------------------------------------------------------------------

    def module(self, frame: Frame, args: Any, output: Any) -> Any:
        """Shows what a hand-written operator gives; it still runs, so that the value belongs to its pass."""
        if frame.operator is None or frame.spelled or not isinstance(output, Tensor):
            return None
        places = (self._places.at(frame, frame.operator),)
        if self._shows_operands:
            self._show_operands(places, None, args, {})
        if not (sites := self._count(places)):
            return output
        if self._shows_calls:
            kwargs = {} if args else by_keyword(frame.caller)
            return self._places.observer.after(Call(sites, frame.module, args, kwargs, frame.module), output)
        return self._places.observer.forward(sites, output, step=self._scope.step, owned=False)

    # --- functions ----------------------------------------------------------------------------------------------

    def operator(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Computes one operator and shows its value, if it is a place of ours."""
        frame = self._scope.current
        if name == "residual" and not is_residual(frame, args, kwargs):
            return self.other(function, args, kwargs)
        if frame is None and not self._loose:
            return function(*args, **kwargs)
        if under_compile():
            raise compiled(frame.module if frame else None)
        if OPERATORS[name].product and frame is not None and uses_own_parameter(frame.module, args, kwargs):
            name = "linear"
        if name == "attention" and self._wants_steps(frame):
            return self._attention_in_steps(frame, function, sdpa_arguments(args, kwargs))
        places = self._places.of(frame, name, args, kwargs)
        compute = self._call if self._shows_calls else self._value
        return compute(frame, places, function, args, kwargs)

    def other(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Computes a function that is no operator of the catalogue; who is shown calls is shown it by its own name.

        What a hand-written norm or activation computes inside is its own affair: its value is shown as a whole.
        """
        frame = self._scope.current if self._shows_calls else None
        name = plain_name(function) if frame is not None and frame.operator is None else None
        if frame is None or name is None:
            return function(*args, **kwargs)
        return self._call(frame, (self._places.at(frame, name),), function, args, kwargs)

    def _value(
        self, frame: Frame | None, places: tuple[Place, ...], function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """For an observer of values."""
        if self._shows_operands:
            self._show_operands(places, function, args, kwargs)
        if torch.is_grad_enabled() and any(place.backward for place in places):
            args, kwargs = self._operands.of_function(places, function, args, kwargs)
        value = function(*args, **kwargs)
        if frame is not None:
            frame.note(places[-1].operator, value)
        if not isinstance(value, Tensor):
            return value
        if not (sites := self._count(places)):
            return value
        inplace = writes(function, kwargs) and _is_one_of(value, args, kwargs)
        owned = not inplace and is_fresh(value, args, kwargs)
        shown = self._places.observer.forward(sites, value, step=self._scope.step, owned=owned)
        return value.copy_(shown) if inplace and shown is not value else shown

    def _call(
        self, frame: Frame | None, places: tuple[Place, ...], function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """For an observer of whole calls."""
        wanted = frame is not None and any(place.forward for place in places)
        before, named = arguments_kept(function, args, kwargs) if wanted else (args, kwargs)
        value = compute(function, args, kwargs)
        if frame is not None:
            frame.note(places[-1].operator, value)
        sites = self._count(places)
        if not wanted or frame is None:
            return value
        shown = self._places.observer.after(Call(sites, function, before, named, frame.module), value)
        if shown is value or not writes(function, kwargs) or not _is_one_of(value, args, kwargs):
            return shown
        return value.copy_(shown)

    def _count(self, places: tuple[Place, ...]) -> tuple[Site, ...]:
        """Counts a call at each of its places; the sites that the observer wants to see."""
        wanted = []
        for place in places:
            index = self._scope.count(place.module, place.operator)
            if place.forward:
                wanted.append(place.site(index))
        return tuple(wanted)

    def _show_operands(
        self, places: tuple[Place, ...], function: Callable[..., Any] | None, args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Shows what a value will be computed from; the call is counted when the value is shown."""
        sites = tuple(place.site(self._places.next_index(place)) for place in places if place.forward)
        if sites:
            given = operands(function, args, kwargs)
            self._places.observer.before(sites, given, step=self._scope.step)

    # --- attention ----------------------------------------------------------------------------------------------

    def _wants_steps(self, frame: Frame | None) -> bool:
        if self._in_steps or self._whole:
            return self._in_steps
        places = (self._places.at(frame, "matmul"), self._places.at(frame, "softmax"))
        return any(place.forward or place.backward for place in places)

    def _attention_in_steps(self, frame: Frame | None, fused: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Attention with its products and softmax in view.

        Where only gradients are wanted there, the value stays the fused kernel's, bit for bit; but not if another watch
        stands outside this one, which must see every value once.
        """
        path = frame.path if frame is not None else ""
        if path not in self.steps_difference and not given.get("dropout_p"):
            self.steps_difference[path] = steps_difference(fused, given)
        wanted = any(self._places.at(frame, step).forward for step in ("matmul", "softmax", "attention"))
        if wanted or self._in_steps or self._is_inner():
            return attention_in_steps(self.operator, **given)
        with torch.random.fork_rng(enabled=bool(given.get("dropout_p"))):
            value = fused(**given)
        return take_value(attention_in_steps(self.operator, **given), value)


def _is_one_of(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return value is not None and any(value is given for given in (*args[:1], kwargs.get("out")))
