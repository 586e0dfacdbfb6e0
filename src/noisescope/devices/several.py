"""Devices and faults by one grammar, one or many at once.

with emulate(model, "tf32") as device:
    model(**inputs)
device.first_changed, device.inert

with emulate(model, ["reduction_order", "saturation:0.2@15.linear"]) as device:
    model(**inputs)
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeAlias

from torch import nn

from ..errors import InputError, quoted
from ..faults import Fault, FaultSimulator, Survey
from ..sites import Layout, Site
from .emulating import EmulatedDevice
from .placing import PlacedDevice, parse_device

__all__ = ["Asked", "Emulation", "emulate"]

Asked: TypeAlias = str | PlacedDevice | Fault


class Emulation:
    """Devices and faults that are opened and closed together.

    Devices stand outside, in the order that they are given, faults inside: a fault strikes what the devices computed.
    Where two devices compute the same function, the later one does.
    """

    def __init__(self, members: Iterable[EmulatedDevice | FaultSimulator]) -> None:
        self.members = tuple(members)
        """as they were asked for"""
        self._open = ExitStack()

    @property
    def first_changed(self) -> Site | None:
        """The site of the first call of the model that came out otherwise, whichever member did it."""
        found = [member.first_change for member in self.members if member.first_change is not None]
        return min(found, key=lambda change: change.at_ns).site if found else None

    @property
    def changed(self) -> int:
        """Elements that the members changed, all together."""
        return sum(member.changed for member in self.members)

    @property
    def inert(self) -> bool:
        """True if no member changed anything."""
        return all(member.inert for member in self.members)

    def __enter__(self) -> "Emulation":
        with ExitStack() as opening:
            for member in sorted(self.members, key=lambda member: isinstance(member, FaultSimulator)):
                opening.enter_context(member)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        names = (str(member.fault) if isinstance(member, FaultSimulator) else member.name for member in self.members)
        return f"<Emulation: {' '.join(names)}>"


def emulate(
    model: nn.Module,
    what: Asked | Iterable[Asked],
    *,
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    inputs: dict[str, Any] | None = None,
    run: Callable[[], object] | None = None,
) -> Emulation:
    """The model as another device, or a broken one, would run it: a context manager.

    `what` is a device, "tf32"; a device at a place, "tf32@9.linear"; a fault, "saturation:0.2@15.linear"; or several of
    them. Use it to see what a second device would show you if you had one. It says nothing about speed. `inputs` are
    what to run the model on once, to look up places; without them a few tokens. `run` runs it itself, in their place.
    """
    many = [what] if isinstance(what, (str, PlacedDevice, Fault)) else list(what)
    if not many:
        raise InputError("emulate: got nothing, expected a device or a fault")
    asked = [_asked(one, seed) for one in many]
    layout = layout or Layout.of(model, blocks=blocks)
    is_placed = any(isinstance(one, Fault) or one.place for one in asked)
    survey = Survey.of(model, layout, inputs, run=run) if is_placed else None
    return Emulation(
        FaultSimulator(model, one, layout=layout, survey=survey)
        if isinstance(one, Fault)
        else EmulatedDevice(model, one, layout=layout, survey=survey)
        for one in asked
    )


def _asked(one: object, seed: int) -> PlacedDevice | Fault:
    if isinstance(one, (PlacedDevice, Fault)):
        return one
    if not isinstance(one, str):
        raise InputError(f"emulate: got {quoted(one)}, expected the name of a device or a fault")
    return parse_device(one, seed=seed)
