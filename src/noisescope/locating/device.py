"""The device under test, as a locator may use it: it computes what it is asked to, healthy or not.

What is asked here passes through every function mode that was entered before the locator's own, so through every
simulated fault. Everything else that a locator computes is the host's (`host.on_host`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..injection import Watch, modes_replaced
from ..sites import Site

__all__ = ["Device"]


class Device:
    """Put aside while the host computes, and asked with `run`."""

    def __init__(self) -> None:
        self.watch: Watch | None = None
        """the locator's own, which does not look at its own questions"""
        self._modes: list[TorchFunctionMode] = []
        self._sites: tuple[Site, ...] = ()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, arithmetic is the host's, but for what `run` computes."""
        with torch.no_grad(), modes_replaced() as modes:
            before, self._modes = self._modes, modes
            try:
                yield
            finally:
                self._modes = before

    @contextmanager
    def at(self, sites: Iterable[Site]) -> Iterator[None]:
        """Inside, what is asked is asked about the call of these sites."""
        before, self._sites = self._sites, tuple(sites)
        try:
            yield
        finally:
            self._sites = before

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the device gives for this call, at the place of the call that is being looked at."""
        assert self.watch is not None
        with modes_replaced(self._modes), self.watch.probing(self._sites):
            return function(*args, **kwargs)
