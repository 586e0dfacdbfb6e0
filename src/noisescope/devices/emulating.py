"""A device of another make, played by the one at hand: at every operator, or at one place.

Like a fault, it acts on whatever is computed in its `with` block, probes included, and its own arithmetic is seen by
nobody. A fused attention kernel is opened in steps of float32 where the device computes one of them in its own way;
elements that come out of these steps alike, with and without the device, keep the bits of the kernel. A kernel that
drops out stays whole: nobody knows what it dropped.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..faults import Survey
from ..faults.changes import Changing, same
from ..faults.wide import widened
from ..injection import Call, attention_in_steps, plain_call, sdpa_arguments, take_value
from ..sites import Layout, Site
from ..specs import Layer, Phase
from .given import Given, name_of
from .placing import PlacedDevice, Where, parse_device
from .rows import SDPA

__all__ = ["EmulatedDevice"]


class EmulatedDevice(Changing):
    """Runs a model as another device would, for as long as the `with` block lasts.

    `what` is a row of `DEVICES`, "tf32", or one at a place, "tf32@9.linear"; see `devices.placing`. A place is looked
    up by running the model once, on `inputs` or a few tokens, or by a `survey` that somebody has made already.

    Afterwards `changed` counts the elements of the model's own values that came out with other bits than this machine
    gives for the same arguments, `calls` the calls that the device computed in its own way, and `first_changed` is the
    first of them that came out otherwise; a device that changed nothing is `inert`. Gradients pass as if nothing had
    happened: they are those of this machine, at the values of the other.
    """

    def __init__(
        self,
        model: nn.Module,
        what: str | PlacedDevice,
        *,
        seed: int = 0,
        blocks: str | None = None,
        layout: Layout | None = None,
        inputs: dict[str, Any] | None = None,
        survey: Survey | None = None,
    ) -> None:
        asked = parse_device(what, seed=seed) if isinstance(what, str) else what
        if not isinstance(asked, PlacedDevice):
            raise InputError(f"emulate: {asked} is a fault; `emulate` or `FaultSimulator` plays it")
        self.asked = asked
        layout = layout or Layout.of(model, blocks=blocks)
        where = Where(asked, layout, survey or Survey.of(model, layout, inputs)) if asked.place else None
        super().__init__(_Computing(self, where), layout)

    @property
    def name(self) -> str:
        """The device with its place, as it was asked for."""
        return str(self.asked)

    def __repr__(self) -> str:
        return f"<EmulatedDevice: {self.name}>"


class _Computing:
    """The observer: gives what the device computes where this machine has computed something else."""

    def __init__(self, device: EmulatedDevice, where: Where | None) -> None:
        self._device, self._where, self._row = device, where, device.asked.row
        self._arithmetic = self._row.make(torch.Generator().manual_seed(device.asked.seed))

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        return phase == "forward" and (self._where is None or self._where.may_hold(layer, module, operator))

    def after(self, call: Call, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return value
        is_opened = self._row.opens_attention and name_of(call) == SDPA
        changes = is_opened or self._row.changes(name_of(call), value.dtype)
        if value.dtype not in self._row.dtypes or not changes or not call.computed(value):
            return value
        with torch._C.DisableTorchFunction():
            with torch.no_grad():
                found = self._inside_kernel(call, value) if is_opened else self._whole(call, value)
            passes_gradients = value.requires_grad and torch.is_grad_enabled() and found is not value
            return take_value(value, found) if passes_gradients else found

    def _holds(self, *sites: Site) -> bool:
        return self._where is None or any(map(self._where.holds, sites))

    def _whole(self, call: Call, value: Tensor) -> Tensor:
        found = self._compute(call, value) if self._holds(*call.sites) else None
        if found is None:
            return value
        unchanged = same(found, value)
        self._device.note(call.site, unchanged)
        return _merged(value, found, unchanged)

    def _compute(self, call: Call, value: Tensor) -> Tensor | None:
        """The device's value of a call, cast; None where it computes as everybody does."""
        found = self._arithmetic(Given(name_of(call), call, value))
        return None if found is None else found.to(value.dtype)

    def _inside_kernel(self, call: Call, value: Tensor) -> Tensor:
        """A fused kernel some of whose steps the device computes in its own way."""
        given = {name: widened(part) for name, part in sdpa_arguments(call.args, call.kwargs).items()}
        if given.get("dropout_p"):
            return value
        steps = _Steps(self._compute, lambda site: self._holds(site, *call.sites), self._row.functions, call)
        found = attention_in_steps(steps, **given).to(value.dtype)
        if not steps.computed:
            return value
        unchanged = same(found, attention_in_steps(plain_call, **given).to(value.dtype))
        self._device.note(steps.first or call.site, unchanged)
        return _merged(value, found, unchanged)


class _Steps:
    """The steps of one attention, those that are held computed by the device; notes the first that it changed."""

    def __init__(
        self,
        compute: Callable[[Call, Tensor], Tensor | None],
        holds: Callable[[Site], bool],
        functions: tuple[str, ...],
        kernel: Call,
    ) -> None:
        self._compute, self._holds, self._functions, self._kernel = compute, holds, functions, kernel
        self._counts = Counter[str]()
        self.computed = False
        self.first: Site | None = None

    def __call__(self, operator: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        healthy = plain_call(operator, function, args, kwargs)
        kernel = self._kernel.site
        site = Site(kernel.layer, operator, kernel.module, self._counts[operator])
        self._counts[operator] += 1
        if operator not in self._functions or not self._holds(site):
            return healthy
        found = self._compute(Call((site,), function, args, kwargs, self._kernel.module), healthy)
        if found is None:
            return healthy
        self.computed = True
        if self.first is None and not bool(same(found, healthy).all()):
            self.first = site
        return found


def _merged(value: Tensor, found: Tensor, unchanged: Tensor) -> Tensor:
    """What the device gives, with the very bits of this machine where they are alike, and laid out as its value."""
    if bool(unchanged.all()):
        return value
    return torch.empty_like(value).copy_(torch.where(unchanged, value, found))
