"""quantised(): a model computes in number formats for as long as a `with` block lasts.

    with noisescope.quantised(model, "mxfp4") as run:                 # weights in 4 bit, activations as they are
        logits = model(**batch).logits
    print(run)                                                        # SQNR, clipped and zeroed share of each weight

    with noisescope.quantised(model, "W8A8"): ...
    with noisescope.quantised(model, {"*.mlp": "nvfp4", "*.self_attn": "mxfp8"}): ...

Products are computed in the model's dtype with rounded operands, which is what a device with wide accumulators does.
Gradients go straight through, to the weights as they are. Nothing of the model is changed: its modules compute with
rounded copies, on this thread.

That needs modules that are called. Some models multiply with the weight of a module past it, as Mamba does with that of
`dt_proj`: a format there would do nothing, and the exit says so with `NothingMatched`. An expert that no token was sent
to is no such case, as the module that holds its linears has not run either.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError, NothingMatched
from ..injection import Replacement, forwards_replaced, take_value
from ..keys import Key
from ..noise.formats import Format
from ..sites import Layout
from .quality import Meter, Row, table
from .schemes import Scheme, parse_scheme
from .weights import Weight, find_weights, matching

__all__ = ["Quantised", "assign", "quantised"]

Asked = str | Format | Scheme | Mapping[str, str | Format | Scheme]


def quantised(
    model: nn.Module,
    formats: Asked,
    *,
    include: Collection[str] = (),
    keep: Collection[str] = (),
    seed: int = 0,
    blocks: str | None = None,
    layout: Layout | None = None,
) -> "Quantised":
    """A context manager in which the linears of the model's blocks compute in number formats.

    Args:
        model: a model with a stack of blocks, in 16 or 32 bit. Nothing is attached to it.
        formats: one for all (`mxfp4`, `int4:group=32`, `int8/int8`, `W8A8`), or patterns of module paths -> formats, of
            which the last that matches counts; what no pattern means stays as it is.
        include: `head`, `embed`: these keep their precision unless they are asked for.
        keep: patterns of what stays as it is.
        seed: of stochastic rounding.
        blocks: where the blocks are, for a model whose structure is not recognised.
        layout: of the model, if it is known already.

    Returns:
        The emulation; `run.rows` has SQNR, clipped and zeroed share of every weight and activation.

    Raises:
        NothingMatched: at the exit, if the model multiplied with a weight of these past its module, so that its format
            had no effect; `keep` it.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    layout = layout or Layout.of(model, blocks=blocks)
    weights = find_weights(layout, include=include)
    return Quantised(weights, assign(weights, formats, keep=keep), seed=seed)


def assign(weights: Collection[str], formats: Asked, *, keep: Collection[str] = ()) -> dict[str, Scheme]:
    """Path -> scheme, of the weights that get one."""
    kept = matching(keep, weights, what="keep")
    if isinstance(formats, Mapping):
        found = dict[str, Scheme]()
        for text, asked in formats.items():
            found |= dict.fromkeys(sorted(matching([text], weights, what="formats")), parse_scheme(asked))
    else:
        found = dict.fromkeys(weights, parse_scheme(formats))
    return {path: found[path] for path in weights if path in found and path not in kept}


class Quantised:
    """Modules that compute in formats, between entry and exit. May be entered again after that."""

    def __init__(self, weights: Mapping[str, Weight], schemes: Mapping[str, Scheme], *, seed: int = 0) -> None:
        self.schemes = dict(schemes)
        self._weights = {path: weights[path] for path in schemes}
        self._seed = seed
        self._rounded: dict[str, Tensor] = {}
        self._meters = {path: Meter() for path, scheme in schemes.items() if scheme.activations is not None}
        self._calls = Counter[str]()
        self._ran = set[nn.Module]()
        """modules that hold weights, and have been called"""
        self._open: ExitStack | None = None

    def __enter__(self) -> "Quantised":
        if self._open is not None:
            raise InputError("quantised: is entered already; make another one for a block inside")
        self._calls.clear()
        self._ran.clear()
        self._rounded = {path: self._round(path) for path, scheme in self.schemes.items() if scheme.weights}
        weights = self._weights.values()
        held = {holder: self._noting(holder) for weight in weights for holder in weight.holders}
        replaced = {module: self._replacement(weight.path, module) for weight in weights for module in weight.modules}
        opened = ExitStack()
        opened.enter_context(forwards_replaced({**held, **replaced}))
        self._open = opened
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._open, self._rounded = self._open, None, {}
        if opened is not None:
            opened.close()
        if kind is None:
            self._refuse_silence()

    def _refuse_silence(self) -> None:
        """Raises for weights that the modules around them have used without calling theirs."""
        unused = [
            path for path, weight in self._weights.items() if not self._calls[path] and self._ran & {*weight.holders}
        ]
        if unused:
            more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
            raise NothingMatched(
                f"formats: {unused[0]}{more} was not called by the module it is in, so that its format had no effect; "
                "leave it as it is with keep"
            )

    @property
    def rounded(self) -> Mapping[str, Tensor]:
        """Path -> the matrix that is multiplied with, while the block lasts."""
        return self._rounded

    @property
    def rows(self) -> list[Row]:
        """What became of each weight, and of the activations that were seen."""
        found = []
        for path, scheme in self.schemes.items():
            weight = self._weights[path]
            if scheme.weights is not None:
                found.append(Row.of_weight(weight, scheme.weights, self._key(path)))
            if scheme.activations is not None and self._meters[path].seen:
                found.append(self._meters[path].row(path, weight.layer, scheme.activations))
        return found

    def __str__(self) -> str:
        return table(self.rows)

    def _key(self, path: str) -> Key:
        return Key(self._seed, f"{path}.weight")

    def _round(self, path: str) -> Tensor:
        weight, form = self._weights[path], self.schemes[path].weights
        assert form is not None
        return form.round(weight.value, axis=weight.axis, key=self._key(path))

    def _noting(self, holder: nn.Module) -> Replacement:
        def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._ran.add(holder)
            return original(*args, **kwargs)

        return forward

    def _replacement(self, path: str, module: nn.Module) -> Replacement:
        """The module's forward with rounded operands."""
        compute = _product(module)

        def forward(_: Callable[..., Any], given: Tensor) -> Tensor:
            self._calls[path] += 1
            own = module.get_parameter("weight")
            weight = _straight_through(own, self._rounded[path]) if path in self._rounded else own
            return compute(self._activations(path, given, self._calls[path]), weight)

        return forward

    def _activations(self, path: str, given: Tensor, call: int) -> Tensor:
        form = self.schemes[path].activations
        if form is None or not given.is_floating_point():
            return given
        with torch.no_grad():
            rounded = form.round(given, key=Key(self._seed, f"{path}.input", step=call))
            self._meters[path].see(form, given, rounded)
        return _straight_through(given, rounded)


def _straight_through(value: Tensor, rounded: Tensor) -> Tensor:
    return take_value(value, rounded) if value.requires_grad and torch.is_grad_enabled() else rounded


def _product(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """How a module multiplies its input with its weight."""
    if isinstance(module, nn.Embedding):
        return lambda ids, weight: F.embedding(ids, weight, module.padding_idx)
    if isinstance(module, nn.Linear):
        return lambda value, weight: F.linear(value, weight, module.bias)
    bias = module.get_parameter("bias")  # of a Conv1D
    return lambda value, weight: torch.addmm(bias, value.flatten(0, -2), weight).view(*value.shape[:-1], -1)
