"""What runs on one thread: its settings, the injection that is open, the counts it books into."""

import logging
import sys
import threading
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn

from ..errors import ExitOrder, NothingMatched
from ..injection import Injection
from ..injection.scope import Pass
from ..sites import Layout, Selector, Site
from ..specs import Layer, Phase
from .counts import Counts
from .settings import Settings

__all__ = ["Running", "ThisThread", "here"]

log = logging.getLogger("noisescope.noisy_ops")


class Running(Injection):
    """An injection into whatever runs on a thread, whose settings may change while it is open.

    It stands underneath every `with noisescope.inject(...)` of the thread, so the two may be opened and closed in
    any order. Doing nothing is not an error here, because the settings may still change, but it is said in the log.
    """

    def __init__(self, settings: Settings, counts: Counts) -> None:
        super().__init__(settings.noise, settings.selection, strict=False)
        self._watch.background = True
        self._met_zero = False
        """True once a selected place was met whose scale is 0: nothing happens there because that was asked for"""
        self._since = (-1, 0)
        self.change(settings, counts)

    def change(self, settings: Settings, counts: Counts) -> None:
        """Other settings from now on; the step goes on, and so do gradients that are still to come."""
        self._say_if_nothing_happened()
        self.noise, self.selection, self.scales = settings.noise, settings.selection, settings.scales
        self.seed = settings.seed
        self.counts, self.stats = counts, counts.of(self.noise)
        self._meant = Selector(self.selection)
        self._watch.ask_again()
        self._met_zero, self._since = False, (self.step, self.stats.calls())

    @property
    def run(self) -> Pass:
        """The forward pass that runs now, else the last one."""
        return self._watch.scope.run

    def go_on_from(self, run: Pass) -> None:
        """Goes on with that forward pass, or after it."""
        self._watch.scope.run = run
        self._since = (run.step, self.stats.calls())

    def know(self, layout: Layout) -> None:
        """Makes a model's layers known before it runs."""
        self._watch.scope.add(layout)

    def join(self, module: nn.Module, args: Any) -> Any:
        """Catches up with the module whose call opened this injection."""
        return self._watch.join(module, args)

    def close(self) -> None:
        """Takes the noise out; says so in the log if it never did anything."""
        self.__exit__(None, None, None)
        if sys.exc_info()[0] is None:
            self._say_if_nothing_happened(dose_too=True)

    def outlive(self) -> None:
        """Takes the noise out of a thread that ends without having asked for it."""
        with suppress(ExitOrder):  # at the end of the process this may be another thread, whose modes are not ours
            self.close()

    @property
    def busy(self) -> bool:
        """True while a module runs on this thread."""
        return self._watch.scope.top is not None

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """True where the settings point; not at scale 0, so that attention stays in its fused kernel, bit for bit.

        Asked at every new place, so every model that runs is noticed here.
        """
        self.counts.blocks = max(self.counts.blocks, self._watch.scope.blocks)
        if not super().wants(layer, operator, module, phase):
            return False
        scale = self.scales.at(layer, operator)
        self._met_zero = self._met_zero or scale == 0
        return scale > 0

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        """The disturbed gradient, by the settings of now: they may have changed since the forward pass."""
        if not self.wants(site.layer, site.operator, site.module, "backward"):
            return grad
        return super().backward(site, grad, step=step, part=part)

    def _say_if_nothing_happened(self, *, dose_too: bool = False) -> None:
        step, calls = self._since
        try:
            idle = self.step > step and self.stats.calls() == calls
            if idle and not self._met_zero and not self.selection.empty:
                raise self._why_nothing()
            if dose_too and self.stats.calls():  # reading the dose makes the device wait, so only at the end
                self.refuse_silence()
        except NothingMatched as silence:
            log.warning("%s", silence)


class Before(NamedTuple):
    """What a thread goes back to when a context ends."""

    settings: Settings
    run: Pass | None
    """None if noise was off"""
    refused: bool


class _Life:
    """Lives as long as its thread."""


class ThisThread(threading.local):
    """The state of the calling thread."""

    everywhere: ClassVar[Settings | None] = None
    """the settings of a process whose environment switched noise on: every thread begins with them"""
    shared: ClassVar[Counts] = Counts()
    """what all threads that run under these settings book into"""

    def __init__(self) -> None:
        self.settings = self.everywhere or Settings()
        self.counts = Counts() if self.everywhere is None else self.shared
        self.running: Running | None = None
        self.refused = False
        """True once this thread has switched the process's noise off for itself"""
        self._registered: WeakKeyDictionary[nn.Module, tuple[str | None, int]] = WeakKeyDictionary()
        self._life = _Life()
        self._at_end: finalize[[], _Life] | None = None

    @property
    def enabled(self) -> bool:
        """True if noise is on, or will be from this thread's first module call on."""
        return self.running is not None or (self.everywhere is not None and not self.refused)

    @property
    def blocks(self) -> int:
        """Number of layers of the largest model that is registered or ran."""
        return max(self.counts.blocks, *(count for _, count in self._registered.values()), 0)

    def apply(self, settings: Settings) -> None:
        """Other settings, in force at once where noise is on."""
        self.settings = settings
        if self.running is not None:
            self.running.change(settings, self.counts)

    def switch_on(self, settings: Settings, run: Pass | None = None) -> None:
        """Noise by these settings, going on from a forward pass, or with step 0."""
        if self.running is None:
            running = Running(settings, self.counts)
            for model, (blocks, _) in self._registered.items():
                running.know(Layout.of(model, blocks=blocks))
            running.__enter__()
            self.running, self._at_end = running, finalize(self._life, running.outlive)
        self.apply(settings)
        self.running.go_on_from(run or Pass(-1))

    def switch_off(self) -> None:
        """No noise; nothing happens where there is none."""
        running, self.running = self.running, None
        if running is not None and self._at_end is not None:
            self._at_end.detach()
            running.close()

    def cover(self) -> bool:
        """Switches the process's noise on, on a thread that it has not reached yet; True if it did."""
        if self.running is not None or not self.enabled:
            return False
        self.switch_on(self.settings)
        return True

    def remember(self) -> Before:
        """What to go back to."""
        return Before(self.settings, self.running.run if self.running is not None else None, self.refused)

    def go_back(self, before: Before) -> None:
        """Settings, forward pass, on or off as they were."""
        self.refused = before.refused
        if before.run is not None:
            self.switch_on(before.settings, before.run)
        else:
            self.settings = before.settings
            self.switch_off()

    def register(self, model: nn.Module, blocks: str | None) -> int:
        """Makes a model's layers known on this thread; how many there are."""
        with torch._C.DisableTorchFunction():  # norms are probed, which is no call of the model's
            layout = Layout.of(model, blocks=blocks)
        self._registered[model] = (blocks, len(layout.blocks))
        if self.running is not None:
            self.running.know(layout)
        return len(layout.blocks)


here = ThisThread()
