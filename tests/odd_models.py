"""Tiny models that use their weights in odd ways, built from transformers configs with random weights."""

import torch
from torch import nn
from transformers import AutoModelForCausalLM, DeepseekV2Config, MambaConfig, Zamba2Config

_SMALL = {"vocab_size": 64, "hidden_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48}
_CONFIGS = {
    "mamba": MambaConfig(**_SMALL, num_hidden_layers=2, state_size=4),
    "zamba2": Zamba2Config(
        **_SMALL,
        **_HEADS,
        num_hidden_layers=4,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        num_mem_blocks=1,
        mamba_d_state=8,
        mamba_headdim=16,
        n_mamba_heads=4,
        mamba_ngroups=1,
        attention_head_dim=16,
        adapter_rank=4,
        chunk_size=4,
    ),
    "deepseek_v2": DeepseekV2Config(
        **_SMALL,
        **_HEADS,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        kv_lora_rank=8,
        q_lora_rank=None,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        head_dim=4,
    ),
}


def build(name: str) -> nn.Module:
    """mamba computes with `dt_proj.weight` past the module, zamba2 shares parameters, deepseek_v2 has inputs of 4-D."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(_CONFIGS[name]).eval()
