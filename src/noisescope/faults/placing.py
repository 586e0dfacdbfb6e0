"""From what a person writes to one operator of one module: "15", "15.linear", "15.mlp.down_proj.linear", "head".

A layer alone is its output: the call whose value the block returns, which is the last residual addition of most. A
layer with an operator is the last such call in it. A survey of the model on a few tokens says which calls there are.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..errors import InputError, NothingMatched, printable, quoted, unknown_name
from ..injection import Call, Watch
from ..injection.survey import some_tokens
from ..sites import Layout, Site
from ..specs import OUTSIDE, Layer, Phase
from .kinds import Fault

__all__ = ["Target", "find_target", "parse_fault"]

_OWN_OUTPUT = {"embed": "embedding", "final_norm": "", "head": "linear"}
_PRODUCTS = ("linear", "matmul", "bmm")


@dataclass(frozen=True)
class Target:
    """Where a fault sits: an operator of a module; `call` for one of its calls alone, None for all of them."""

    layer: Layer | None
    operator: str
    module: str
    call: int | None
    operators: tuple[str, ...]
    """all names that this operator goes by: with other weights, a module's own product is a `matmul`"""

    @property
    def name(self) -> str:
        """The written form, like that of a site."""
        return ".".join(filter(None, (self.module, self.operator, None if self.call is None else str(self.call))))

    def holds(self, site: Site) -> bool:
        """Whether a site that somebody names is this one."""
        fits = site.module == self.module and site.operator in self.operators
        return fits and self.call in (None, site.call)


def parse_fault(text: str, *, seed: int = 0) -> Fault:
    """The fault of `kind[:magnitude]@site[,sparsity=..][,p=..][,absolute]`.

    >>> parse_fault("saturation:0.2@15.linear,sparsity=0.1").site
    '15.linear'
    """
    found = re.fullmatch(r"([^:@,]+)(?::([^:@,]+))?@([^@,]+)((?:,[^,]+)*)", text.strip())
    if not found:
        raise InputError(f"simulate: got {quoted(text)}, expected kind:magnitude@layer[.operator][,sparsity=..][,p=..]")
    kind, magnitude, site, options = found.groups()
    given: dict[str, Any] = {"magnitude": None if magnitude is None else _number("magnitude", magnitude)}
    for option in filter(None, options.split(",")):
        name, equals, value = option.partition("=")
        if name == "absolute" and not equals:
            given[name] = True
        elif name in ("sparsity", "p"):
            given[name] = _number(name, value)
        elif name == "seed" and value.isdecimal():
            seed = int(value)
        else:
            raise InputError(f"simulate: got {quoted(option)}, expected sparsity=, p=, seed= or absolute")
    return Fault(kind, site=site, seed=seed, **given)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"simulate: {name}: got {quoted(text)}, expected a number") from None


def find_target(fault: Fault, model: nn.Module, layout: Layout, inputs: dict[str, Tensor] | None = None) -> Target:
    """The operator that a fault's site means; an error if the model has none such."""
    calls = _Calls.of(model, layout, inputs)
    layer, rest = _layer(fault.site, layout)
    if layer is None:
        return _by_name(fault, calls)
    if not rest:
        site = calls.outputs.get(layer)
        if site is None:
            raise NothingMatched(f"simulate: {fault.site}: layer {layer} computes nothing that it returns")
        return _checked(fault, calls.target(site, only=isinstance(layer, int)), calls)
    module, _, operator = rest.rpartition(".")
    here = [site for site in calls.sites if site.layer == layer]
    found = [site for site in here if site.operator == operator and _ends(site.module, module)]
    if not found:
        names = sorted({site.operator for site in here})
        if operator not in names:
            problem = unknown_name(f"operator of layer {layer}", operator, names)
            raise NothingMatched(f"simulate: {problem}")
        raise NothingMatched(f"simulate: {printable(fault.site)}: no module of layer {layer} ends in {quoted(module)}")
    if operator == "attention" and found[-1] in calls.alias:
        return _checked(fault, calls.target(calls.alias[found[-1]], only=True), calls)
    return _checked(fault, calls.target(found[-1]), calls)


def _layer(site: str, layout: Layout) -> tuple[Layer | None, str]:
    first, _, rest = site.partition(".")
    if first in OUTSIDE:
        return first, rest
    if re.fullmatch(r"-?\d+", first):
        layout.require(int(first), what="simulate")
        return int(first), rest
    return None, site


def _by_name(fault: Fault, calls: "_Calls") -> Target:
    """A site by its full name, as `sites --all` and verdicts print it; with or without call and direction."""
    wanted = fault.site.removesuffix(".forward")
    for site in calls.sites:
        full = site.name.removesuffix(".forward")
        if wanted == full:
            return _checked(fault, replace(calls.target(site), call=site.call), calls)
        if wanted == full.rpartition(".")[0]:
            return _checked(fault, calls.target(site), calls)
    raise NothingMatched(f"simulate: no site {quoted(fault.site)}; `noisescope sites --all` lists them")


def _checked(fault: Fault, target: Target, calls: "_Calls") -> Target:
    kind = fault.row
    if kind.operators is not None and not set(kind.operators) & {target.operator}:
        raise InputError(f"simulate: {kind.name} exists at {' '.join(kind.operators)}, not at {target.operator}")
    dtype = calls.dtypes[target.module, target.operator]
    kind.check(fault.size, dtype)
    return target


def _ends(path: str, module: str) -> bool:
    return not module or path == module or path.endswith(f".{module}")


class _Calls:
    """An observer that lists the calls of a pass, and which of them computed what each layer gives."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.alias: dict[Site, Site] = {}
        """attention -> the product that computes it, where it is no kernel of its own"""
        self.outputs: dict[Layer, Site] = {}
        self.dtypes: dict[tuple[str, str], torch.dtype] = {}
        self._leaves: dict[str, bool] = {}
        self._values: dict[int, tuple[Site, Tensor]] = {}
        """memory of a value -> its site, and the value, so that nobody else gets that memory meanwhile"""

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, inputs: dict[str, Tensor] | None) -> "_Calls":
        calls = cls()
        ends = [block.register_forward_hook(calls._block_ends(layer)) for layer, block in enumerate(layout.blocks)]
        watch = Watch(calls, layout=layout)
        try:
            with watch, torch.no_grad():
                model(**(inputs if inputs is not None else some_tokens(model)))
        finally:
            for end in ends:
                end.remove()
        calls._values.clear()
        calls.alias = {
            site: product for site, product in calls.alias.items() if site.module not in watch.steps_difference
        }
        return calls

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        return phase == "forward"

    def after(self, call: Call, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            for site in call.sites:
                self.sites.append(site)
                self.dtypes[site.module, site.operator] = value.dtype
            if len(call.sites) > 1:
                self.alias[call.sites[0]] = call.site
            self._leaves[call.site.module] = not any(True for _ in call.module.children())
            memory = value.untyped_storage().data_ptr()
            if not any(_memory(given) == memory for given in tree_leaves(call.args)) or call.in_place:
                self._values[memory] = call.site, value
                if isinstance(call.site.layer, str):
                    self.outputs[call.site.layer] = call.site
        return value

    def target(self, site: Site, *, only: bool = False) -> Target:
        """All calls of a site's operator by its module, or that one alone."""
        own_product = site.operator == "linear" and self._leaves.get(site.module, False)
        operators = _PRODUCTS if own_product else (site.operator,)
        return Target(site.layer, site.operator, site.module, site.call if only else None, operators)

    def _block_ends(self, layer: int) -> Any:
        def end(_module: nn.Module, _args: Any, output: Any) -> None:
            first = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)), None)
            if first is not None and (found := self._values.get(_memory(first))) is not None:
                self.outputs[layer] = found[0]
            self._values.clear()

        return end


def _memory(given: Any) -> int:
    return given.untyped_storage().data_ptr() if isinstance(given, Tensor) else 0
