"""From what a person writes to one operator of one module: "15", "15.linear", "15.mlp.down_proj.linear", "head".

A layer alone is its output: the call whose value the block returns, which is the last residual addition of most;
`embed` is what the first block is given. A layer with an operator is that operator, with all its calls, of the last
module in it that has one. A survey of the model on a few tokens says which calls there are.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..errors import InputError, NothingMatched, printable, quoted, unknown_name
from ..injection import Call, Watch, attention_in_steps, plain_call, plain_name, sdpa_arguments, unwatched
from ..injection.recognising import tensors
from ..injection.survey import kept_inputs, some_tokens
from ..sites import Layout, Site
from ..specs import OUTSIDE, Layer, Phase
from .kinds import Fault

__all__ = ["Survey", "Target", "find_target", "parse_fault", "split_layer"]

_PRODUCTS = ("linear", "matmul", "bmm")
_COPIES = frozenset({"to", "float", "double", "half", "bfloat16", "type", "type_as", "clone", "contiguous"})
"""functions that hand on a value which another has computed"""


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
        if site.module != self.module or site.operator not in self.operators or self.call not in (None, site.call):
            return False
        return isinstance(self.layer, int) or site.layer == self.layer  # a stack computes before and after its blocks


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


def find_target(fault: Fault, calls: "Survey", layout: Layout) -> Target:
    """The operator that a fault's site means; an error if the model has none such."""
    if (named := _by_name(fault, calls)) is not None:
        return _checked(fault, named, calls)
    layer, rest = split_layer(fault.site, layout)
    if layer is None:
        raise NothingMatched(f"simulate: no site {quoted(fault.site)}; `noisescope sites --all` lists them")
    if not rest:
        site = calls.outputs.get(layer)
        if site is None:
            where = f"layer {layer}" if isinstance(layer, int) else layer
            raise NothingMatched(f"simulate: the model computes nothing that is the output of {where}")
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


def split_layer(site: str, layout: Layout, *, what: str = "simulate") -> tuple[Layer | None, str]:
    """The layer that a place begins with, and the rest; None if it begins with no layer."""
    first, _, rest = site.partition(".")
    if first in OUTSIDE:
        return first, rest
    if re.fullmatch(r"-?\d+", first):
        layout.require(int(first), what=what)
        return int(first), rest
    return None, site


def _by_name(fault: Fault, calls: "Survey") -> Target | None:
    """A site by its full name, as `sites --all` and verdicts print it; with or without call and direction."""
    wanted = fault.site.removesuffix(".forward")
    for site in calls.sites:
        full = site.name.removesuffix(".forward")
        one, every = wanted == full, wanted == full.rpartition(".")[0] and site.module
        if (one or every) and site in calls.alias:
            return calls.target(calls.alias[site], only=True)
        if one or every:
            return calls.target(site, only=one)
    return None


def _checked(fault: Fault, target: Target, calls: "Survey") -> Target:
    kind = fault.row
    if kind.operators is not None and not set(kind.operators) & {target.operator}:
        raise InputError(f"simulate: {kind.name} exists at {' '.join(kind.operators)}, not at {target.operator}")
    dtype = calls.dtypes[target.module, target.operator]
    try:
        kind.check(fault.size, dtype, absolute=fault.absolute)
    except InputError as error:
        raise InputError(f"simulate: {error}") from None
    return target


def _ends(path: str, module: str) -> bool:
    return not module or path == module or path.endswith(f".{module}")


class Survey:
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
    def of(
        cls,
        model: nn.Module,
        layout: Layout,
        inputs: dict[str, Any] | None = None,
        *,
        run: Callable[[], object] | None = None,
    ) -> "Survey":
        """Runs the model once: on these inputs or a few tokens, or as `run` does."""
        calls = cls()
        hooks = [block.register_forward_hook(calls._block_ends(layer)) for layer, block in enumerate(layout.blocks)]
        hooks += [block.register_forward_pre_hook(calls._first_starts, with_kwargs=True) for block in layout.blocks[:1]]
        watch = Watch(calls, layout=layout, whole=True)
        given = {} if run is not None else kept_inputs(inputs) if inputs is not None else some_tokens(model)
        held: Mapping[str, Tensor] = given or dict(model.named_parameters())
        try:
            with unwatched(), watch, torch.random.fork_rng(devices=_accelerators(held)):
                if run is not None:
                    run()
                else:
                    with torch.no_grad():
                        model(**given)
        finally:
            for hook in hooks:
                hook.remove()
        calls._values.clear()
        return calls

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """Everything."""
        return phase == "forward"

    def after(self, call: Call, value: Any) -> Any:
        """Lists a call whose value was computed; the value goes on unchanged."""
        if isinstance(value, Tensor) and value.is_floating_point():
            if plain_name(call.function) == "scaled_dot_product_attention":
                self._add_steps(call, value)
            if call.computed(value):
                self._add(call, value, tensors(call.args, call.kwargs))
        return value

    def _add_steps(self, call: Call, value: Tensor) -> None:
        """The products and the softmax inside a fused kernel, as `attention_in_steps` counts them."""
        steps: list[Site] = []

        def step(operator: str, function: Any, args: Any, kwargs: Any) -> Any:
            index = sum(site.operator == operator for site in steps)
            steps.append(Site(call.site.layer, operator, call.site.module, index))
            return plain_call(operator, function, args, kwargs)

        with torch._C.DisableTorchFunction():
            attention_in_steps(step, **sdpa_arguments(call.args, call.kwargs))
        for site in steps:
            self.sites.append(site)
            self.dtypes[site.module, site.operator] = value.dtype

    def _add(self, call: Call, value: Tensor, given: list[Tensor]) -> None:
        for site in call.sites:
            self.sites.append(site)
            self.dtypes[site.module, site.operator] = value.dtype
        if len(call.sites) > 1:
            self.alias[call.sites[0]] = call.site
        self._leaves[call.site.module] = not any(True for _ in call.module.children())
        is_copy = plain_name(call.function) in _COPIES and given and _memory(given[0]) in self._values
        computed = self._values[_memory(given[0])][0] if is_copy else call.site
        self._values[_memory(value)] = computed, value
        if not is_copy and call.site.layer in ("final_norm", "head"):
            self.outputs[call.site.layer] = call.site

    def is_leaf(self, module: str) -> bool:
        """True for a module that has none inside, so that a product with its weights is its own."""
        return self._leaves.get(module, False)

    def target(self, site: Site, *, only: bool = False) -> Target:
        """All calls of a site's operator by its module, or that one alone."""
        own_product = site.operator == "linear" and self.is_leaf(site.module)
        operators = _PRODUCTS if own_product else (site.operator,)
        return Target(site.layer, site.operator, site.module, site.call if only else None, operators)

    def _first_starts(self, _block: nn.Module, args: Any, kwargs: Any) -> None:
        if "embed" not in self.outputs:
            self._returned("embed", (args, kwargs))

    def _block_ends(self, layer: int) -> Any:
        def end(_block: nn.Module, _args: Any, output: Any) -> None:
            self._returned(layer, output)
            self._values.clear()

        return end

    def _returned(self, layer: Layer, output: Any) -> None:
        """The first tensor of a layer's output says which call computed it."""
        first = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)), None)
        if first is not None and (found := self._values.get(_memory(first))) is not None:
            self.outputs[layer] = found[0]


def _memory(given: Tensor) -> int:
    return given.untyped_storage().data_ptr()


def _accelerators(inputs: Mapping[str, Tensor]) -> list[int]:
    devices = {given.device for given in inputs.values() if isinstance(given, Tensor)}
    return [device.index or 0 for device in devices if device.type == "cuda"]
