"""Where channels are looked at when nobody says where: attention output, MLP down and gate projections.

    family             attention output     MLP down            gate
    Llama, Qwen, ...   self_attn.o_proj     mlp.down_proj       mlp.gate_proj
    Phi-3, GLM         self_attn.o_proj     mlp.down_proj       mlp.gate_up_proj
    Mixtral, gpt-oss   self_attn.o_proj     mlp.experts         mlp.experts
    GPT-2              attn.c_proj          mlp.c_proj          -
    OPT, BART          self_attn.out_proj   fc2                 -
    GPT-NeoX, Bloom    attention.dense      mlp.dense_4h_to_h   -
    BERT               attention.output     output.dense        -
    T5                 SelfAttention.o      DenseReluDense.wo   DenseReluDense.wi_0

Projections are recognised by their own name and by whether they stand inside an attention module. Experts whose
weights are stacked in one module are that module: its `linear` values are the gate's and then the down projection's.
"""

import re

from torch import nn

from ..sites import Layout

__all__ = ["default_projections"]

_ATTENTION = re.compile(r"att(n|ention)", re.IGNORECASE)
_MIXES = frozenset({"o_proj", "out_proj", "out_lin"})
"""outputs of attention, or of what stands in its place, wherever they are"""
_ATTENDS = frozenset({"c_proj", "dense", "wo", "o", "proj"})
"""outputs of attention if they are inside it"""
_DOWN = frozenset({"down_proj", "fc2", "fc_out", "dense_4h_to_h", "c_proj", "w2", "wo", "lin2", "ffn_output"})
_GATE = frozenset({"gate_proj", "gate_up_proj", "wi_0"})
_STACKED = _DOWN | _GATE | {"w1", "gate_up_weight"}


def default_projections(layout: Layout) -> frozenset[str]:
    """Paths of the modules that compute the default sites, of all blocks."""
    return frozenset(
        layout.paths[module]
        for block in layout.blocks
        for path, module in block.named_modules()
        if path and (_is_projection(path.split("."), block) or _holds_experts(module))
    )


def _is_projection(names: list[str], block: nn.Module) -> bool:
    *around, own = (name.lower() for name in names)
    if own in _MIXES:
        return True
    if any(map(_ATTENTION.search, around)):
        return own in _ATTENDS
    if own == "w1":  # the gate where there is an up projection beside it, else the up projection itself
        return hasattr(block.get_submodule(".".join(names[:-1])), "w3")
    return own in _DOWN or own in _GATE or (own == "dense" and around[-1:] == ["output"])


def _holds_experts(module: nn.Module) -> bool:
    """True for a module that keeps the projections of many experts as parameters of its own."""
    return any(name in _STACKED and weight.ndim == 3 for name, weight in module.named_parameters(recurse=False))
