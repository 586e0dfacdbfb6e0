"""How much rounding each operator may add on its way, one row for a group of functions that round alike.

    rule          functions                                   error before the last rounding, u the accumulator's unit
    exact         add, mul, copies, casts, comparisons        0: IEEE 754 rounds once
    divided       div, sqrt, reciprocal, addcmul, addcdiv     4u|r|: hardware may multiply by a reciprocal
    inverse root  rsqrt                                       the same, and u' |r| in a narrow dtype with the unit u'
    elementwise   exp, tanh, sigmoid, silu, ...               u (|r| (4 + 2|x|) + 2|x|) + 2^-118
    gelu          gelu                                        the same, and 8u|x| for a polynomial in place of erf
    power         pow                                         u |r| (4 + 2|log|r||) + 2^-118
    angle         sin, cos                                    u (4 + |x|): one rounding of the argument
    summed        sum, mean, cumsum, index_add, var, norm     2 (lam sqrt(K) + 2) u (f(|x|) + |r|)
    softmax       softmax, log_softmax                        see `softmax`
    norm          layer_norm, rms_norm, hand-written norms    see `norms`
    activation    hand-written gelu and silu                  see `elementwise`
    product       linear, matmul, addmm, einsum, ...          see `products`; checked in float32 first
    attention     scaled_dot_product_attention                see `attention`
    bits          whole numbers, truth values                 0

A function without a row is checked only as far as its bits agree with the host's; where they do not, nobody can tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from ...errors import InputError
from .arguments import HostCall

__all__ = ["RULES", "Fit", "Rule", "Spread", "know", "register", "rule_of"]

Spread: TypeAlias = Callable[[HostCall, Tensor, float], Tensor]
"""call, float64 reference, false-alarm share -> error that a healthy device may have before the last rounding"""

Fit: TypeAlias = Callable[[HostCall, Tensor, float], tuple[Sequence[Tensor], Tensor, int]]
"""call, float64 reference, false-alarm share -> what the errors that a row shares multiply, the spread of what is left,
and the dimension that a row lies along"""


@dataclass(frozen=True)
class Rule:
    """One row."""

    name: str
    functions: tuple[str, ...]
    """functions by their plain names; "module gelu" for a hand-written operator"""
    spread: Spread | None
    """None: bit for bit"""
    fit: Fit | None = None
    """a sum that all elements of a row share has one error for all of them: what is left has a far smaller bound"""


RULES: dict[str, Rule] = {}
"""function or operator -> its rule"""


def register(name: str, *functions: str, fit: Fit | None = None) -> Callable[[Spread], Spread]:
    """A decorator: the function gives the spread of these; each may have one rule only."""

    def add(spread: Spread) -> Spread:
        know(Rule(name, functions, spread, fit))
        return spread

    return add


def know(rule: Rule) -> None:
    """Adds a row."""
    for function in rule.functions:
        if function in RULES:
            raise InputError(f'"{function}" has a rule already: {RULES[function].name}')
        RULES[function] = rule


def rule_of(call: HostCall) -> Rule | None:
    """The rule of a call: its function's, or that of the operator that a module is."""
    if call.module is not None:
        return RULES.get(f"module {call.operator}")
    return RULES.get(call.name)


know(
    Rule(
        "exact",
        (
            *("add", "sub", "mul", "neg", "abs", "relu", "clamp", "clip", "maximum", "minimum", "max", "min", "amax"),
            *("where", "masked_fill", "cat", "stack", "hstack", "to", "float", "half", "bfloat16", "double", "type"),
            *("type_as", "contiguous", "clone", "repeat", "repeat_interleave", "index_select", "gather", "getitem"),
            *("setitem", "embedding", "triu", "tril", "dropout", "pad", "roll", "flatten", "reshape", "index", "copy"),
            *("index_put", "scatter", "masked_scatter", "one_hot", "topk", "sort", "flip", "zeros_like", "ones_like"),
            *("full_like", "new_zeros", "new_ones", "new_full", "new_tensor", "split", "chunk", "unbind", "square"),
            *("floor", "ceil", "round", "trunc", "hardtanh", "index_copy", "index_fill", "fill", "zero", "histc"),
            *("bincount", "amin", "expand", "view", "nan_to_num", "sign", "outer", "swapaxes", "detach", "cpu", "cuda"),
        ),
        None,
    )
)
