"""What a device that computes otherwise has changed, counted while its `with` block lasts."""

from dataclasses import dataclass
from time import perf_counter_ns
from types import TracebackType
from typing import TypeVar

from torch import Tensor

from ..injection import CallObserver, Watch, is_probing
from ..sites import Layout, Site

__all__ = ["Change", "Changing", "same"]

Me = TypeVar("Me", bound="Changing")


@dataclass(frozen=True)
class Change:
    """A call that came out otherwise than on this machine, and when that was."""

    site: Site
    at_ns: int


class Changing:
    """A device that computes otherwise, for as long as the `with` block lasts; who derives from it says how."""

    def __init__(self, observer: CallObserver, layout: Layout) -> None:
        self.changed = 0
        """elements of the model's own calls that came out otherwise than on this machine"""
        self.elements = 0
        """elements that those calls computed"""
        self.calls = 0
        """calls of the model's own that went through this device"""
        self.first_change: Change | None = None
        """the first of the model's own calls that came out otherwise, and when"""
        self._watch = Watch(observer, layout=layout, whole=True)

    @property
    def first_changed(self) -> Site | None:
        """The site of the model's own first call that came out otherwise, given the same arguments."""
        return self.first_change.site if self.first_change is not None else None

    @property
    def inert(self) -> bool:
        """True if no element was changed: nobody can see this device. That 0 became -0 is no change."""
        return self.changed == 0

    def note(self, site: Site, unchanged: Tensor) -> None:
        """Books one call; a probe is no call of the model's own."""
        if is_probing():
            return
        changed = int((~unchanged).sum())
        self.calls += 1
        self.changed += changed
        self.elements += unchanged.numel()
        if changed and self.first_change is None:
            self.first_change = Change(site, perf_counter_ns())

    def __enter__(self: Me) -> Me:
        self._watch.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._watch.__exit__(kind, error, trace)


def same(one: Tensor, other: Tensor) -> Tensor:
    """Where two values are alike; NaN is like NaN, and 0 like -0."""
    return (one == other) | (one.isnan() & other.isnan())
