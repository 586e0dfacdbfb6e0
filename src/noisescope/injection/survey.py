"""Which places a model has, found by running it on a few tokens; the coverage meter, and the observer effect."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..operators import OPERATORS
from ..sites import Layout, Site
from ..specs import Layer, Phase
from .watching import Watch

__all__ = ["Coverage", "is_unchanged_by_watching", "kept_inputs", "some_tokens", "survey"]

_STEPS = ("matmul", "softmax")
"""what is in view only while attention is computed in steps"""


@dataclass(frozen=True)
class Coverage:
    """The sites of a model, and what can be reached.

    `in_steps` are the sites that exist only while attention is computed in separate steps; `hidden` are kernels
    that cannot be opened, with the operators inside them.
    """

    sites: tuple[Site, ...]
    in_steps: frozenset[Site]
    hidden: dict[tuple[str, str], tuple[str, ...]]
    layers: int
    steps_difference: float

    def count(self, operator: str, *, in_steps: bool | None = None) -> int:
        """How many sites an operator has, of those in view, those in steps, or both."""
        return sum(site.operator == operator and in_steps in (None, site in self.in_steps) for site in self.sites)

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that this model computes and that can be injected."""
        present = Counter(site.operator for site in self.sites)
        return tuple(name for name in OPERATORS if present[name])

    @property
    def hidden_operators(self) -> dict[str, int]:
        """Operator -> how many kernels hide it."""
        return dict(Counter(name for names in self.hidden.values() for name in names))


class _Listing:
    """An observer that wants everything, or all but some operators, and changes nothing."""

    def __init__(self, *, but: tuple[str, ...] = ()) -> None:
        self.sites: list[Site] = []
        self._but = but

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        return phase == "forward" and operator not in self._but

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        self.sites.extend(reversed(sites))
        return value

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        return grad


def survey(model: nn.Module, inputs: Mapping[str, Tensor] | None = None, *, blocks: str | None = None) -> Coverage:
    """Every site of a model, from one forward pass over `inputs`, or over eight made-up tokens."""
    layout = Layout.of(model, blocks=blocks)
    listing = _Listing()
    watch = Watch(listing, layout=layout)
    with watch, torch.no_grad():
        model(**(inputs if inputs is not None else some_tokens(model)))
    fused = watch.steps_difference
    return Coverage(
        sites=tuple(listing.sites),
        in_steps=frozenset(site for site in listing.sites if site.module in fused and site.operator in _STEPS),
        hidden=dict(watch.hidden),
        layers=len(layout.blocks),
        steps_difference=max((float(found) for found in fused.values()), default=0.0),
    )


@torch.no_grad()
def is_unchanged_by_watching(model: nn.Module, *, blocks: str | None = None) -> bool:
    """Whether a run with every operator looked at gives the bare model's output, bit for bit.

    Fused attention stays fused here; what computing it in steps changes is the coverage's `steps_difference`.
    """
    tokens = some_tokens(model)
    bare = model(**tokens)[0]
    with Watch(_Listing(but=_STEPS), layout=Layout.of(model, blocks=blocks)):
        watched = model(**tokens)[0]
    return bool(torch.equal(bare, watched))


def some_tokens(model: nn.Module) -> dict[str, Tensor]:
    """Eight tokens that any vocabulary has, in the arguments that Hugging Face models take."""
    get = getattr(model, "get_input_embeddings", None)
    embedding = get() if callable(get) else None
    if not isinstance(embedding, nn.Embedding):
        raise ModelError(f"{type(model).__name__}: cannot make up tokens for it; pass inputs={{'input_ids': ...}}")
    ids = torch.arange(1, 9, device=embedding.weight.device).remainder(embedding.num_embeddings).view(1, 8)
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return {"input_ids": ids, "decoder_input_ids": ids} if is_pair else {"input_ids": ids}


def kept_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs for one more pass: a cache of keys and values grows with every pass that is given it."""
    return {name: given if isinstance(given, Tensor) else copy.deepcopy(given) for name, given in inputs.items()}
