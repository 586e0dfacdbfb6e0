"""A device with a fault in it, played by the healthy one at hand.

The fault belongs to one operator of one module. Every call of that operator inside that module passes through it,
whoever makes the call: the model, a repetition, a probe with other arguments. All other arithmetic of the device is
healthy, and so is all of the host, which computes outside the function mode. The fault's own arithmetic is seen by
nobody. So a locator that is entered inside sees what it would see on the broken device, and nothing else.
"""

import copy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..injection import Call, Watch, is_probing, plain_name
from ..sites import Layout
from ..specs import Layer, Phase
from .kinds import Fault, Struck
from .placing import Target, find_target, parse_fault

__all__ = ["FaultSimulator"]

_NARROW = (torch.bfloat16, torch.float16)


class FaultSimulator:
    """Runs a model as if one operator of the device were broken, for as long as the `with` block lasts.

    `site` is a layer (its output), "layer.operator", "layer.module.operator", or the full name of a site; `kind` and
    `magnitude` are those of `faults.kinds`. `sparsity` is the share of channels that are struck, drawn once by `seed`;
    `p` is the probability that a call is struck at all.

    Afterwards `changed` counts the elements that the model itself got wrong; a fault that changed none is `inert`.
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
        blocks: str | None = None,
        layout: Layout | None = None,
        inputs: dict[str, Tensor] | None = None,
    ) -> None:
        if isinstance(site, Fault):
            self.fault = site
        elif not kind:
            self.fault = parse_fault(str(site), seed=seed)
        else:
            self.fault = Fault(kind, magnitude, str(site), sparsity, p, absolute, seed)
        layout = layout or Layout.of(model, blocks=blocks)
        self.target: Target = find_target(self.fault, model, layout, inputs)
        self.changed = 0
        """elements of the model's own calls that came out otherwise than on a healthy device"""
        self.elements = 0
        """elements that those calls computed"""
        self._watch = Watch(_Breaking(self), layout=layout)
        self._dice = torch.Generator().manual_seed(self.fault.seed)
        self._channels: dict[int, Tensor] = {}
        self._copies: dict[nn.Module, nn.Module] = {}

    @property
    def inert(self) -> bool:
        """True if no bit of any value was changed: nobody can find this fault."""
        return self.changed == 0

    def __enter__(self) -> "FaultSimulator":
        self._watch.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._watch.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<FaultSimulator: {self.fault} at {self.target.name}>"

    # --- breaking -----------------------------------------------------------------------------------------------

    def strike(self, call: Call, value: Tensor) -> Tensor:
        """What the broken operator gives where the healthy one gives `value`."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            fires = self.fault.p >= 1 or float(torch.rand((), generator=self._dice)) < self.fault.p
            struck = self._struck(call, value) if fires and value.numel() else value
            if not is_probing():
                differs = (struck != value) & ~(struck.isnan() & value.isnan())
                self.changed += int(differs.sum())
                self.elements += value.numel()
        return struck

    def _struck(self, call: Call, value: Tensor) -> Tensor:
        kind = self.fault.row
        wide = value.detach().cpu()
        wide = wide.float() if wide.dtype in _NARROW else wide
        if kind.before_cast and value.dtype in _NARROW:
            wide = self._widely(call, call.function).cpu()
        cast = wide.to(value.dtype)
        if kind.recompute is not None:
            broken = self._widely(call, lambda *a, **k: kind.recompute(call.function, a, k, self.fault.size)).cpu()
        else:
            assert kind.act is not None
            broken = wide.clone().reshape(-1, wide.shape[-1] if wide.ndim else 1)
            at = self._struck_channels(broken.shape[-1])
            struck = Struck(broken[:, at], self.fault.size, self.fault.absolute, value.dtype, self._dice)
            broken[:, at] = kind.act(struck).to(broken.dtype)
            broken = broken.reshape(wide.shape)
        if kind.recompute is not None and self.fault.sparsity < 1:
            at = self._struck_channels(wide.shape[-1])
            mixed = wide.clone()
            mixed[..., at] = broken[..., at].to(wide.dtype)
            broken = mixed
        broken = broken.to(value.dtype)
        same = (broken == cast) | (broken.isnan() & cast.isnan())  # what the fault leaves alone keeps its very bits
        return torch.where(same.to(value.device), value, broken.to(value.device))

    def _struck_channels(self, width: int) -> Tensor:
        if width not in self._channels:
            generator = torch.Generator().manual_seed(self.fault.seed + 1)
            count = max(1, round(self.fault.sparsity * width))
            self._channels[width] = torch.randperm(width, generator=generator)[:count].sort().values
        return self._channels[width]

    def _widely(self, call: Call, function: Any) -> Tensor:
        """The call in float32: what stands in the accumulator before it is cast."""
        args, kwargs = tree_map(_wide, (call.args, call.kwargs))
        if not call.is_module:
            result: Tensor = function(*args, **kwargs)
            return result
        if call.module not in self._copies:
            self._copies[call.module] = copy.deepcopy(call.module).float()
        found: Tensor = self._copies[call.module].forward(*args, **kwargs)
        return found


class _Breaking:
    """The observer: asks the simulator about every call that its target's operator makes."""

    def __init__(self, simulator: FaultSimulator) -> None:
        self._simulator = simulator

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        target = self._simulator.target
        return phase == "forward" and module == target.module and operator in target.operators

    def after(self, call: Call, value: Any) -> Any:
        target = self._simulator.target
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if not any(target.holds(site) for site in call.sites):
            return value
        if target.operator == "attention" and plain_name(call.function) != "scaled_dot_product_attention":
            return value  # the fused kernel is broken, not the product that stands for it where attention is in steps
        return self._simulator.strike(call, value)


def _wide(given: Any) -> Any:
    return given.float() if isinstance(given, Tensor) and given.dtype in _NARROW else given
