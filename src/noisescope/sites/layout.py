"""Where things are in a model: its blocks in order, what lies outside them, its hand-written operators.

Found by structure, not by one name pattern:
- blocks are the elements of the largest list of non-leaf modules that is not itself inside such a list;
- a norm is a leaf module that forgets the scale of its input (probed, not guessed from its name);
- `embed`, `final_norm` and `head` are recognised by role: embeddings, norms beside the blocks, output projection.
"""

import copy
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from ..errors import ModelError, NothingMatched
from ..specs import OUTSIDE, Layer
from .adapters import without_adapter
from .patterns import pattern

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """The map of one model. Make it with `Layout.of(model)`."""

    root: nn.Module
    paths: dict[nn.Module, str]
    blocks: tuple[nn.Module, ...]
    layer: dict[nn.Module, Layer]
    """blocks and the modules outside them whose role is plain; the rest is decided by when it runs"""
    operator: dict[nn.Module, str]
    """modules that are an operator by themselves: norms and activations"""
    stacks: frozenset[nn.Module] = field(default_factory=frozenset)
    """modules that directly hold a list of blocks"""
    home: dict[nn.Module, int | None] = field(default_factory=dict)
    """modules inside blocks -> the block, or None for one that several share"""

    @classmethod
    def of(cls, model: nn.Module, *, blocks: str | None = None) -> "Layout":
        """The layout of a model; `blocks` names the list of blocks, or a pattern of them, by hand."""
        paths = _paths(model)
        found = _named_blocks(paths, blocks) if blocks else _find_blocks(model, paths)
        return cls._build(model, paths, tuple(map(_unwrapped, found)))

    def require(self, layer: Layer, *, what: str = "layers") -> None:
        """Raises if the model has no such layer."""
        if layer not in OUTSIDE and not (isinstance(layer, int) and 0 <= layer < len(self.blocks)):
            raise NothingMatched(f"{what}: {layer} is out of range, the model has 0 to {len(self.blocks) - 1}")

    @classmethod
    def without_blocks(cls, model: nn.Module) -> "Layout":
        """The layout of a module that has no blocks: all its places have no layer."""
        return cls._build(model, _paths(model), ())

    @classmethod
    def _build(cls, model: nn.Module, paths: dict[nn.Module, str], blocks: tuple[nn.Module, ...]) -> "Layout":
        operator = _module_operators(paths)
        stacks = _stacks(paths, blocks)
        layer: dict[nn.Module, Layer] = {block: index for index, block in enumerate(blocks)}
        home: dict[nn.Module, int | None] = {}
        for index, block in enumerate(blocks):
            for module in block.modules():
                home[module] = index if module not in home else None
        if blocks:
            layer |= _roles(model, paths, operator, stacks, home.keys())
        return cls(model, paths, blocks, layer, operator, stacks, home)


_WRAPPED = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""the names under which torch keeps a module inside a wrapper that is no part of the model"""


def _paths(model: nn.Module) -> dict[nn.Module, str]:
    """Every module's path as the bare model has it, so that a wrapped one has the same sites and the same draws."""
    paths = {module: path for path, module in model.named_modules()}
    if not any(wrapped in path for path in paths.values() for wrapped in _WRAPPED):
        return paths
    return {
        module: ".".join(name for name in path.split(".") if name not in _WRAPPED) for module, path in paths.items()
    }


def _unwrapped(module: nn.Module) -> nn.Module:
    inner = next((child for name, child in module.named_children() if name in _WRAPPED), None)
    return module if inner is None else _unwrapped(inner)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _stacks(paths: dict[nn.Module, str], blocks: Iterable[nn.Module]) -> frozenset[nn.Module]:
    by_path = {path: module for module, path in paths.items()}
    return frozenset(by_path[_parent(_parent(paths[block]))] for block in blocks)


# --- blocks -----------------------------------------------------------------------------------------------------


def _find_blocks(model: nn.Module, paths: dict[nn.Module, str]) -> tuple[nn.Module, ...]:
    stacks = _outermost([module for module in paths if _is_stack(module)])
    if not stacks:
        raise ModelError(
            f"{type(model).__name__}: no decoder blocks found; looked for a ModuleList or Sequential of modules that "
            'have submodules; name them by hand with blocks="path.of.the.list" or a pattern such as "encoder.layer.*"'
        )
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        sizes = [_size(stack) for stack in stacks]
        stacks = [stack for stack, size in zip(stacks, sizes, strict=True) if size >= 0.1 * max(sizes)]
    elif len(stacks) > 1:
        stacks = [max(_inside_decoder(model, stacks), key=_size)]
    return tuple(block for stack in stacks for block in stack.children())


def _is_stack(module: nn.Module) -> bool:
    """A list of modules that each have submodules; a Sequential only if they are all of one class."""
    children = list(module.children())
    if not children or not all(any(True for _ in child.children()) for child in children):
        return False
    if isinstance(module, nn.ModuleList):
        return True
    return isinstance(module, nn.Sequential) and len(children) > 1 and len({type(child) for child in children}) == 1


def _outermost(stacks: list[nn.Module]) -> list[nn.Module]:
    nested = {module for stack in stacks for module in stack.modules() if module is not stack}
    return [stack for stack in stacks if stack not in nested]


def _inside_decoder(model: nn.Module, stacks: list[nn.Module]) -> list[nn.Module]:
    """Of several stacks those of the language model, where the model says which part that is."""
    get_decoder = getattr(model, "get_decoder", None)
    decoder = get_decoder() if callable(get_decoder) else None
    if not isinstance(decoder, nn.Module):
        return stacks
    modules = set(decoder.modules())
    return [stack for stack in stacks if stack in modules] or stacks


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _named_blocks(paths: dict[nn.Module, str], name: str) -> tuple[nn.Module, ...]:
    for module, path in paths.items():
        if path == name and isinstance(module, (nn.ModuleList, nn.Sequential)):
            return tuple(module.children())
    test = pattern(name)
    depth = name.count(".")
    found = tuple(
        module for module, path in paths.items() if test(path) and (name.startswith("re:") or path.count(".") == depth)
    )
    if not found:
        raise ModelError(f'blocks: "{name}" names neither a list of modules nor any module of this model')
    return found


# --- what lies outside the blocks -------------------------------------------------------------------------------


def _roles(
    model: nn.Module,
    paths: dict[nn.Module, str],
    operator: dict[nn.Module, str],
    stacks: frozenset[nn.Module],
    inside: Collection[nn.Module],
) -> dict[nn.Module, Layer]:
    roles: dict[nn.Module, Layer] = {}
    beside = {paths[stack] for stack in stacks}
    for module, path in paths.items():
        if module in inside:
            continue
        own_name = path.rpartition(".")[2].lower()
        if isinstance(module, nn.Embedding) or "embed" in own_name:
            roles[module] = "embed"
        elif "norm" in operator.get(module, "") and _parent(without_adapter(path)) in beside:
            roles[module] = "final_norm"
    for getter, role in (("get_input_embeddings", "embed"), ("get_output_embeddings", "head")):
        said = _ask(model, getter)
        if said is not None and said not in inside:
            roles[said] = role
    return roles


def _ask(model: nn.Module, getter: str) -> nn.Module | None:
    """What the model itself says, if it has the method and an answer."""
    method = getattr(model, getter, None)
    try:
        found = method() if callable(method) else None
    except (NotImplementedError, AttributeError):
        return None
    return found if isinstance(found, nn.Module) else None


# --- modules that are operators ---------------------------------------------------------------------------------

_NOT_OURS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LocalResponseNorm, nn.CrossMapLRN2d)


def _module_operators(paths: Iterable[nn.Module]) -> dict[nn.Module, str]:
    kinds: dict[type, str | None] = {}
    found: dict[nn.Module, str] = {}
    for module in paths:
        if any(True for _ in module.children()) or isinstance(module, _NOT_OURS):
            continue
        kind = type(module)
        if kind not in kinds:
            kinds[kind] = _activation_kind(module) or _norm_kind(module)
        if (operator := kinds[kind]) is not None:
            found[module] = operator
    return found


def _activation_kind(module: nn.Module) -> str | None:
    name = type(module).__name__.lower()
    if any(True for _ in module.parameters(recurse=False)):
        return None
    return "gelu" if "gelu" in name else "silu" if "silu" in name or "swish" in name else None


def _norm_kind(module: nn.Module) -> str | None:
    """`rms_norm` or `layer_norm` for a module that forgets the scale of its input, else None.

    A layer norm also forgets a shift, a root-mean-square norm does not: T5LayerNorm is an `rms_norm` whatever its
    name says. Where the module cannot be probed (weights on `meta`, a second input), the name decides.
    """
    weight = next((p for p in module.parameters(recurse=False) if p.ndim == 1), None)
    by_name = _norm_by_name(module)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) or (weight is not None and weight.is_meta):
        return by_name
    if by_name is None and not _scales_channels(module):
        return None
    width = weight.numel() if weight is not None else _declared_width(module)
    dtype, device = (weight.dtype, weight.device) if weight is not None else (torch.float32, torch.device("cpu"))
    probe = torch.linspace(-1.0, 2.0, width, dtype=dtype, device=device).view(1, 1, width)
    try:
        trial = copy.deepcopy(module)  # a norm may keep running statistics, which are the model's
        with torch.no_grad():
            for own in trial.parameters():  # a norm with a broken weight is a norm, and must be named if it is to blame
                own.masked_fill_(~own.isfinite(), 1.0)
            plain, scaled, shifted = (trial.forward(x) for x in (probe, 4 * probe, probe + 1))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return by_name
    if not isinstance(plain, torch.Tensor) or plain.shape != probe.shape or not bool(plain.any()):
        return by_name
    if not _close(plain, scaled):
        return None
    return "layer_norm" if _close(plain, shifted) else "rms_norm"


def _norm_by_name(module: nn.Module) -> str | None:
    """What its class says that a module is, if anything."""
    name = type(module).__name__.lower()
    if "norm" not in name and not isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return None
    return "rms_norm" if "rms" in name or isinstance(module, nn.RMSNorm) else "layer_norm"


def _scales_channels(module: nn.Module) -> bool:
    """True if all that a module has is a number or two for each channel, as a norm does."""
    weights = list(module.parameters(recurse=False))
    return bool(weights) and all(weight.ndim == 1 and weight.numel() > 1 for weight in weights)


def _declared_width(module: nn.Module) -> int:
    shape = getattr(module, "normalized_shape", None)
    return int(shape[-1]) if isinstance(shape, (tuple, list)) and shape else 64


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.allclose(a.float(), b.float(), rtol=0.05, atol=0.05))
