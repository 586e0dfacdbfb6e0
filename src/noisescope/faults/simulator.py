"""A device with a fault in it, played by the healthy one at hand.

The fault belongs to one operator of one module. Every call of that operator inside that module passes through it,
whoever makes the call: the model, a repetition, a probe with other arguments. All other arithmetic of the device is
healthy, and so is all of the host, which computes outside the function mode. The fault's own arithmetic is seen by
nobody. So a locator that is entered inside sees what it would see on the broken device, and nothing else.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..injection import Call, attention_in_steps, plain_call, plain_name, sdpa_arguments, take_value
from ..sites import Layout, Site
from ..specs import Layer, Phase
from .changes import Changing, same
from .kinds import Fault, Struck
from .placing import Survey, Target, find_target, parse_fault
from .wide import is_narrow, widely, widened

__all__ = ["FaultSimulator"]

_STEPS = ("matmul", "softmax")
"""what a fused attention kernel computes inside"""


class FaultSimulator(Changing):
    """Runs a model as if one operator of the device were broken, for as long as the `with` block lasts.

    `site` is a layer (its output), "layer.operator", "layer.module.operator", or the full name of a site; `kind` and
    `magnitude` are those of `faults.kinds`. `sparsity` is the share of channels that are struck, drawn once by `seed`;
    `channels` are these by their index instead. `p` is the probability that a call is struck at all. `inputs` are what
    to survey the model on, `survey` is one that somebody has made already.

    Afterwards `changed` counts the elements that the model itself got wrong; a fault that changed none is `inert`.
    Gradients pass as if nothing had happened: a device's error has no derivative.
    """

    def __init__(
        self,
        model: nn.Module,
        site: str | int | Fault,
        kind: str = "",
        magnitude: float | None = None,
        sparsity: float = 1.0,
        seed: int = 0,
        *,
        p: float = 1.0,
        absolute: bool = False,
        channels: Sequence[int] | None = None,
        blocks: str | None = None,
        layout: Layout | None = None,
        inputs: dict[str, Any] | None = None,
        survey: Survey | None = None,
    ) -> None:
        if kind and not isinstance(site, Fault):
            self.fault = Fault(kind, magnitude, str(site), sparsity, p, absolute, seed)
        elif kind or magnitude is not None or sparsity != 1 or p != 1 or absolute:
            raise InputError("simulate: a fault that is given as a whole says itself what, how much and how often")
        else:
            self.fault = site if isinstance(site, Fault) else parse_fault(str(site), seed=seed)
        layout = layout or Layout.of(model, blocks=blocks)
        self.target: Target = find_target(self.fault, survey or Survey.of(model, layout, inputs), layout)
        super().__init__(_Breaking(self), layout)
        self._dice = torch.Generator().manual_seed(self.fault.seed)
        self._channels: dict[int, Tensor] = {}
        self._named = sorted(set(channels)) if channels is not None else None
        if self._named is not None and (self.fault.sparsity < 1 or not self._named or self._named[0] < 0):
            raise InputError(f"channels: got {self._named}, expected indices from 0 on, and no sparsity beside them")

    def __repr__(self) -> str:
        return f"<FaultSimulator: {self.fault} at {self.target.name}>"

    # --- breaking -----------------------------------------------------------------------------------------------

    def strike(self, call: Call, value: Tensor) -> Tensor:
        """What the broken operator gives where the healthy one gives `value`."""
        with torch._C.DisableTorchFunction():
            if not value.is_floating_point():
                return value
            with torch.no_grad():
                fires = self.fault.p >= 1 or float(torch.rand((), generator=self._dice)) < self.fault.p
                struck = self._struck(call, value) if fires and value.numel() else value
                self.note(call.site, same(struck, value))
            passes_gradients = value.requires_grad and torch.is_grad_enabled() and struck is not value
            return take_value(value, struck) if passes_gradients else struck

    def _struck(self, call: Call, value: Tensor) -> Tensor:
        kind = self.fault.row
        wide = widened(value.detach()).cpu()
        if kind.before_cast and is_narrow(value.dtype):
            wide = widened(widely(call, call.function, value)).cpu()
        broken = self._recomputed(call, value) if kind.recompute is not None else self._changed(wide, value.dtype)
        if kind.recompute is not None and (self.fault.sparsity < 1 or self._named is not None):
            at = self._struck_channels(wide.shape[-1])
            broken = wide.index_copy(-1, at, broken[..., at].to(wide.dtype))
        broken = broken.to(value.dtype)
        unchanged = same(broken, wide.to(value.dtype))  # what the fault leaves alone keeps its very bits
        return torch.where(unchanged.to(value.device), value, broken.to(value.device))

    def _changed(self, wide: Tensor, dtype: torch.dtype) -> Tensor:
        """The value after a fault that sees nothing but the value."""
        assert self.fault.row.act is not None
        rows = wide.reshape(-1, wide.shape[-1] if wide.ndim else 1)
        at = self._struck_channels(rows.shape[-1])
        struck = Struck(rows[:, at], self.fault.size, self.fault.absolute, dtype, self._dice)
        return rows.index_copy(-1, at, self.fault.row.act(struck).to(rows.dtype)).reshape(wide.shape)

    def _recomputed(self, call: Call, value: Tensor) -> Tensor:
        """The value by the broken way to compute it."""
        recompute = self.fault.row.recompute
        assert recompute is not None

        def function(*args: Any, **kwargs: Any) -> Tensor:
            found: Tensor = recompute(call.function, args, kwargs, self.fault.size)
            return found

        return widely(call, function, value).cpu()

    def _struck_channels(self, width: int) -> Tensor:
        if self._named is not None:
            if self._named[-1] >= width:
                raise InputError(f"channels: got {self._named[-1]}, {self.target.name} has 0 to {width - 1}")
            return torch.tensor(self._named)
        if width not in self._channels:
            generator = torch.Generator().manual_seed(self.fault.seed + 1)
            count = max(1, round(self.fault.sparsity * width))
            self._channels[width] = torch.randperm(width, generator=generator)[:count].sort().values
        return self._channels[width]


class _Breaking:
    """The observer: asks the simulator about every call that its target's operator makes."""

    def __init__(self, simulator: FaultSimulator) -> None:
        self._simulator = simulator

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        target = self._simulator.target
        names = (*target.operators, "attention") if target.operator in _STEPS else target.operators
        return phase == "forward" and module == target.module and operator in names

    def after(self, call: Call, value: Any) -> Any:
        target = self._simulator.target
        is_fused = plain_name(call.function) == "scaled_dot_product_attention"
        if not isinstance(value, Tensor) or not call.computed(value):
            return value
        if is_fused and target.operator in _STEPS:
            return self._inside_kernel(call, value)
        if not any(target.holds(site) for site in call.sites):
            return value
        if target.operator == "attention" and not is_fused:
            return value  # the fused kernel is broken, not the product that stands for it where attention is in steps
        return self._simulator.strike(call, value)

    def _inside_kernel(self, call: Call, value: Tensor) -> Tensor:
        """A fused kernel one of whose steps is broken; like the kernel, it computes them in float32."""
        target, calls, struck = self._simulator.target, Counter[str](), False

        def step(operator: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
            nonlocal struck
            healthy = plain_call(operator, function, args, kwargs)
            site = Site(target.layer, operator, target.module, calls[operator])
            calls[operator] += 1
            if not target.holds(site):
                return healthy
            given = self._simulator.strike(Call((site,), function, args, kwargs, call.module), healthy)
            struck = struck or not bool(same(given, healthy).all())
            return given

        with torch._C.DisableTorchFunction():
            given = {name: widened(part) for name, part in sdpa_arguments(call.args, call.kwargs).items()}
            broken = attention_in_steps(step, **given)
            return torch.empty_like(value).copy_(broken) if struck else value  # laid out in memory as the kernel does
