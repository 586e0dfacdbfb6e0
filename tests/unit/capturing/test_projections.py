"""The default sites of each family: attention output, MLP down and gate projections, and nothing else."""

import pytest
from torch import nn

from families import FAMILIES, build
from noisescope.capturing.projections import default_projections
from noisescope.sites import Layout

LIKE_LLAMA = {"self_attn.o_proj", "mlp.down_proj", "mlp.gate_proj"}
LIKE_BLOOM = {"self_attention.dense", "mlp.dense_4h_to_h"}
EXPECTED = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma3", "mistral", "olmo", "cohere"), LIKE_LLAMA),
    "phi3": {"self_attn.o_proj", "mlp.down_proj", "mlp.gate_up_proj"},
    "mixtral": {"self_attn.o_proj", "mlp.experts"},
    "gpt2": {"attn.c_proj", "mlp.c_proj"},
    "gptj": {"attn.out_proj", "mlp.fc_out"},
    "gpt_neox": {"attention.dense", "mlp.dense_4h_to_h"},
    "opt": {"self_attn.out_proj", "fc2"},
    "bloom": LIKE_BLOOM,
    "falcon": LIKE_BLOOM,
    "bert": {"attention.output.dense", "output.dense"},
    "t5": {"layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    layout = Layout.of(build(family))
    found = default_projections(layout)
    first = layout.paths[layout.blocks[0]] + "."
    assert {path.removeprefix(first) for path in found if path.startswith(first)} == EXPECTED[family]
    assert len(found) >= len(EXPECTED[family]) * len(layout.blocks)


class Block(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(4, 4))


def test_w1_is_the_gate_only_beside_an_up_projection():
    gated = nn.Sequential(Block("w1", "w2", "w3"), Block("w1", "w2", "w3"))
    plain = nn.Sequential(Block("w1", "w2"), Block("w1", "w2"))
    assert default_projections(Layout.of(gated)) == {"0.w1", "0.w2", "1.w1", "1.w2"}
    assert default_projections(Layout.of(plain)) == {"0.w2", "1.w2"}
