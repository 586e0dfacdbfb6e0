"""The operator catalogue: one row per operator, with every way PyTorch code spells it.

    name         spellings                                          hidden by
    linear       F.linear, grouped_mm                               nn.MultiheadAttention's fused forward
    matmul       torch.matmul, @, mm, addmm, einsum, ...            fused attention (computed in steps on demand)
    softmax      F.softmax, torch.softmax, Tensor.softmax, ...      fused attention (computed in steps on demand)
    ...

Two operators have no function of their own and are recognised where they happen: a hand-written norm or activation
is a module (`sites` finds it), and `residual` is an addition of two hidden states directly in a block's forward.
A product with a parameter of the very module that computes it is a `linear`, however it is spelled: GPT-2's Conv1D
is an `addmm`, Falcon's linear an `@`, Mixtral's experts a grouped product.

Importing this module does not import torch; spellings are dotted names, resolved on first use.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, TypeAlias

from .errors import InputError, unknown_name
from .specs import known, parse_names
from .specs.known import GROUPS

__all__ = [
    "GROUPS",
    "OPERATORS",
    "Operator",
    "Spelling",
    "expand",
    "fused_kernels",
    "register",
    "spellings",
]

Maker: TypeAlias = Callable[..., Any]
Sample: TypeAlias = Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Spelling:
    """One function that computes an operator, with a sample call built from a tensor maker `t(*shape)`."""

    path: str
    sample: Sample

    def resolve(self) -> Callable[..., Any] | None:
        """The function itself, or None in a torch that does not have it."""
        import torch

        return reduce(lambda found, part: getattr(found, part, None), self.path.split(".")[1:], torch)  # type: ignore[arg-type,return-value]


@dataclass(frozen=True)
class Operator:
    """One row: the operator's name, how it is spelled, a call it refuses, and which kernels hide it from view."""

    name: str
    spellings: tuple[Spelling, ...]
    refused: Sample
    """arguments that the first spelling refuses, to see that errors pass through the engine unchanged"""
    core: bool = False
    """active in the functional interface without `all_ops_mode`"""
    product: bool = False
    """multiplies two tensors, so it may be a `linear` or one of attention's two products"""
    fused_in: tuple[str, ...] = ()
    """kernels that compute this operator inside, out of reach; attention's can be computed in steps"""


OPERATORS: dict[str, Operator] = {}


def register(operator: Operator) -> Operator:
    """Adds a row; neither its name nor any of its spellings may be taken."""
    taken = {spelling.path: row.name for row in OPERATORS.values() for spelling in row.spellings}
    if operator.name in OPERATORS or operator.name in GROUPS:
        raise InputError(f'operator "{operator.name}" is in the catalogue already')
    for spelling in operator.spellings:
        if spelling.path in taken:
            raise InputError(f"{spelling.path} spells {taken[spelling.path]} already, not {operator.name}")
    OPERATORS[operator.name] = operator
    known.know(known.OPERATORS, operator.name)
    spellings.cache_clear()
    fused_kernels.cache_clear()
    return operator


def _call(*shapes: tuple[int, ...], **kwargs: Any) -> Sample:
    return lambda t: (tuple(t(*shape) for shape in shapes), kwargs)


def _spell(*paths: str, sample: Sample) -> tuple[Spelling, ...]:
    return tuple(Spelling(path, sample) for path in paths)


@cache
def spellings() -> Mapping[Callable[..., Any], str]:
    """Every function this torch has that spells an operator -> the operator's name."""
    return {
        function: row.name
        for row in OPERATORS.values()
        for spelling in row.spellings
        if (function := spelling.resolve()) is not None
    }


@cache
def fused_kernels() -> Mapping[Callable[..., Any], tuple[str, ...]]:
    """Kernels that cannot be opened -> the operators inside them."""
    paths = dict.fromkeys(path for row in OPERATORS.values() for path in row.fused_in)
    return {
        function: tuple(row.name for row in OPERATORS.values() if path in row.fused_in)
        for path in paths
        if (function := Spelling(path, _call()).resolve()) is not None
    }


def expand(operators: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Operator names in catalogue order, groups expanded; None stays None (all).

    >>> expand(["norm", "softmax"])
    ('softmax', 'layer_norm', 'rms_norm')
    """
    names = parse_names(
        operators.replace(",", " ").split() if isinstance(operators, str) else operators, what="operators"
    )
    if names is None:
        return None
    wanted: set[str] = set()
    for name in names:
        if name not in OPERATORS and name not in GROUPS:
            raise unknown_name("operator", name, OPERATORS)
        wanted.update(GROUPS.get(name, (name,)))
    return tuple(name for name in OPERATORS if name in wanted)


# --- the rows ---------------------------------------------------------------------------------------------------

_MHA = "torch.nn.functional.multi_head_attention_forward"
_ENCODER_LAYER = "torch._transformer_encoder_layer_fwd"
_NATIVE_MHA = "torch._native_multi_head_attention"
_FUSED_MHA = (_MHA, _ENCODER_LAYER, _NATIVE_MHA)

register(
    Operator(
        "linear",
        refused=_call((2, 4), (3, 5)),
        core=True,
        fused_in=_FUSED_MHA,
        spellings=(
            *_spell("torch.nn.functional.linear", sample=_call((2, 4), (3, 4))),
            *_spell(
                "torch.nn.functional.grouped_mm",
                "torch._grouped_mm",
                sample=lambda t: ((t(8, 16), t(2, 16, 16)), {"offs": t.ends(4, 8)}),  # type: ignore[attr-defined]
            ),
        ),
    )
)
register(
    Operator(
        "matmul",
        refused=_call((2, 4), (3, 5)),
        core=True,
        product=True,
        fused_in=_FUSED_MHA,
        spellings=(
            *_spell(
                "torch.matmul",
                "torch.Tensor.matmul",
                "torch.Tensor.__matmul__",
                "torch.linalg.matmul",
                "torch.mm",
                "torch.Tensor.mm",
                sample=_call((2, 4), (4, 3)),
            ),
            *_spell("torch.addmm", "torch.Tensor.addmm", "torch.Tensor.addmm_", sample=_call((2, 3), (2, 4), (4, 3))),
            *_spell("torch.einsum", sample=lambda t: (("ij,jk->ik", t(2, 4), t(4, 3)), {})),
        ),
    )
)
register(
    Operator(
        "bmm",
        refused=_call((2, 2, 4), (2, 3, 3)),
        core=True,
        product=True,
        fused_in=_FUSED_MHA,
        spellings=(
            *_spell("torch.bmm", "torch.Tensor.bmm", sample=_call((2, 2, 4), (2, 4, 3))),
            *_spell(
                "torch.baddbmm",
                "torch.Tensor.baddbmm",
                "torch.Tensor.baddbmm_",
                sample=_call((2, 2, 3), (2, 2, 4), (2, 4, 3)),
            ),
        ),
    )
)
register(
    Operator(
        "softmax",
        refused=_call((2, 4), dim=7),
        fused_in=_FUSED_MHA,
        spellings=_spell(
            "torch.nn.functional.softmax",
            "torch.softmax",
            "torch.Tensor.softmax",
            "torch.special.softmax",
            sample=_call((2, 4), dim=-1),
        ),
    )
)
register(
    Operator(
        "silu",
        refused=lambda t: ((t(2, 4).long(),), {}),
        spellings=_spell("torch.nn.functional.silu", sample=_call((2, 4))),
    )
)
register(
    Operator(
        "gelu",
        refused=_call((2, 4), approximate="none of these"),
        fused_in=(_ENCODER_LAYER,),
        spellings=_spell("torch.nn.functional.gelu", sample=_call((2, 4), approximate="tanh")),
    )
)
register(
    Operator(
        "layer_norm",
        refused=lambda t: ((t(2, 4), (3,)), {}),
        fused_in=(_ENCODER_LAYER,),
        spellings=(
            *_spell("torch.nn.functional.layer_norm", "torch.layer_norm", sample=lambda t: ((t(2, 4), (4,), t(4)), {})),
        ),
    )
)
register(
    Operator(
        "rms_norm",
        refused=lambda t: ((t(2, 4), (3,)), {}),
        spellings=_spell(
            "torch.nn.functional.rms_norm", "torch.rms_norm", sample=lambda t: ((t(2, 4), (4,), t(4)), {})
        ),
    )
)
register(
    Operator(
        "attention",
        refused=_call((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4)),
        fused_in=_FUSED_MHA,
        spellings=_spell(
            "torch.nn.functional.scaled_dot_product_attention", sample=_call((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
        ),
    )
)
register(
    Operator(
        "embedding",
        refused=lambda t: ((t(2, 3), t(5, 4)), {}),
        spellings=(
            *_spell("torch.nn.functional.embedding", sample=lambda t: ((t.ids(2, 3), t(5, 4)), {})),  # type: ignore[attr-defined]
            *_spell("torch.embedding", sample=lambda t: ((t(5, 4), t.ids(2, 3)), {})),  # type: ignore[attr-defined]
        ),
    )
)
register(
    Operator(
        "residual",
        refused=_call((2, 4), (3, 5)),
        spellings=_spell(
            "torch.add",
            "torch.Tensor.add",
            "torch.Tensor.__add__",
            "torch.Tensor.__radd__",
            "torch.Tensor.add_",
            "torch.Tensor.__iadd__",
            sample=_call((2, 4), (2, 4)),
        ),
    )
)
