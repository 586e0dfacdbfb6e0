"""Which weights of a model a number format can be given to, and how each of them is multiplied.

    path                                 layer  shape       summed over
    model.layers.0.self_attn.q_proj      0      576 x 576   axis 1
    transformer.h.0.attn.c_attn          0      768 x 2304  axis 0 (Conv1D)
    lm_head                              head   ...         only if it is asked for, and so is embed

A module counts if it is a linear by class and is seen to compute as one; one that a library has replaced by a
quantised one of its own is refused, not rounded twice. So are matrices that are stacked in one tensor, as experts are:
to leave them as they are would pass most of a model over in silence. Routers and norms stay in their precision. A
parameter that several modules share is one weight, under the path of the first of them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError, ModelError, NothingMatched, quoted, unknown_name
from ..sites import Layout, is_linear, reduction_axis
from ..sites.patterns import pattern
from ..specs import Layer

__all__ = ["OUTSIDE", "Weight", "find_weights", "matching", "refuse_quantised"]

OUTSIDE = ("embed", "head")
"""what is left in its own precision unless it is asked for: the first and last words are the most fragile"""


@dataclass(frozen=True, eq=False)
class Weight:
    """One weight matrix, in the module that multiplies with it, or the first of those that share it."""

    path: str
    layer: Layer
    module: nn.Module
    others: tuple[nn.Module, ...] = ()
    """modules of the blocks that have the same parameter"""
    holders: tuple[nn.Module, ...] = ()
    """the modules of the blocks that these are in, and by whose forward they are to be called"""

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All that multiply with it."""
        return (self.module, *self.others)

    @property
    def value(self) -> Tensor:
        """The matrix."""
        return self.module.get_parameter("weight")

    @property
    def axis(self) -> int:
        """The axis that its product sums over; for an embedding that of a row."""
        return reduction_axis(self.module)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        return tuple(self.value.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return self.value.numel()


def find_weights(layout: Layout, *, include: Collection[str] = ()) -> dict[str, Weight]:
    """Path -> weight, in the order of the model: the linears of the blocks, and what is included of what is outside."""
    if isinstance(include, str):
        raise InputError(f"include: got {quoted(include)}, expected a list of names")
    for name in include:
        if name not in OUTSIDE:
            raise unknown_name("place outside the blocks", name, OUTSIDE)
    refuse_quantised(layout.root)
    _refuse_stacked(layout)
    found = {weight.path: weight for weight in _weights(layout, include)}
    if not found:
        raise NothingMatched(f"{type(layout.root).__name__}: no linear layers in its blocks to give a format to")
    return found


def _weights(layout: Layout, include: Collection[str]) -> Iterator[Weight]:
    by_path = {path: module for module, path in layout.paths.items()}
    sharing = _sharing(layout)
    for module, path in layout.paths.items():
        home = layout.home.get(module)
        if module in sharing and home is not None:
            around = (layout.paths[one].rpartition(".")[0] for one in sharing[module])
            yield Weight(path, home, module, sharing[module][1:], tuple(by_path[name] for name in around))
        elif layout.layer.get(module) == "head" and "head" in include and _can_be_rounded(module):
            yield Weight(path, "head", module)
        elif "embed" in include and module is _embedding(layout):
            yield Weight(path, "embed", module)


def _sharing(layout: Layout) -> dict[nn.Module, tuple[nn.Module, ...]]:
    """The first linear of the blocks that has a parameter -> all that have it."""
    found: dict[nn.Parameter, tuple[nn.Module, ...]] = {}
    for module in layout.paths:
        if layout.home.get(module) is not None and _can_be_rounded(module):
            parameter = module.get_parameter("weight")
            found[parameter] = (*found.get(parameter, ()), module)
    return {modules[0]: modules for modules in found.values()}


def _embedding(layout: Layout) -> nn.Module | None:
    """Where tokens become vectors; those of positions are small, and stay."""
    get = getattr(layout.root, "get_input_embeddings", None)
    found = get() if callable(get) else None
    if isinstance(found, nn.Embedding) and type(found).forward is not nn.Embedding.forward:
        raise ModelError(f"embed: {type(found).__name__} computes in a way of its own; leave it in its precision")
    return found if isinstance(found, nn.Embedding) else None


def _can_be_rounded(module: nn.Module) -> bool:
    return is_linear(module) and _computes_as_one(module)


@torch.no_grad()
def _computes_as_one(module: nn.Module) -> bool:
    """Whether a linear gives what others give; seen by a probe where its forward is its own."""
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
        return True
    weight = module.get_parameter("weight")
    probe = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device).view(1, 1, -1)
    plain, own = F.linear(probe, weight, module.bias), module(probe)
    return isinstance(own, Tensor) and own.shape == plain.shape and torch.allclose(own, plain, rtol=1e-2, atol=1e-3)


def _refuse_stacked(layout: Layout) -> None:
    for block in layout.blocks:
        for name, parameter in block.named_parameters():
            if parameter.ndim == 3 and min(parameter.shape) > 1 and "conv" not in name:
                raise ModelError(
                    f"{layout.paths[block]}.{name}: is a stack of {len(parameter)} matrices in one tensor, which "
                    "number formats cannot be given to yet"
                )


def refuse_quantised(model: nn.Module) -> None:
    """Raises for a model whose weights are in a number format of their own already."""
    config = getattr(getattr(model, "config", None), "quantization_config", None)
    if config is not None:
        plain = config if isinstance(config, dict) else vars(config)
        method = plain.get("quant_method") or type(config).__name__
        raise _quantised(model, str(getattr(method, "value", method)))
    for path, parameter in model.named_parameters():
        if (
            not parameter.is_floating_point()
            or parameter.dtype.itemsize < 2
            or type(parameter.data) is not torch.Tensor
        ):
            raise _quantised(model, f"{path} is {str(parameter.dtype).removeprefix('torch.')}")


def _quantised(model: nn.Module, how: str) -> ModelError:
    return ModelError(
        f"{type(model).__name__}: is quantised already ({how}); a format is chosen for the checkpoint in 16 or 32 bit"
    )


def matching(patterns: Collection[str], weights: Collection[str], *, what: str) -> frozenset[str]:
    """The paths that some pattern means; each pattern must mean one. A pattern may name a module around them."""
    if isinstance(patterns, str):
        raise InputError(f"{what}: got {quoted(patterns)}, expected a list of patterns")
    found = set[str]()
    for text in patterns:
        if not isinstance(text, str):
            raise InputError(f"{what}: got {quoted(text)}, expected patterns of module paths")
        test = pattern(text, what=what)
        here = {path for path in weights if any(map(test, _above(path)))}
        if not here:
            raise NothingMatched(f"{what}: {quoted(text)} matches no weight; `noisescope sites` lists the modules")
        found |= here
    return frozenset(found)


def _above(path: str) -> Iterator[str]:
    names = path.split(".")
    return (".".join(names[:depth]) for depth in range(len(names), 0, -1))
