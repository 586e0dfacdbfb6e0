"""Tiny models of many families, built from transformers configs with random weights: structure is what they test."""

from copy import deepcopy

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    CohereConfig,
    FalconConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)

VOCAB, HIDDEN, LAYERS = 64, 32, 3
_LIKE_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LIKE_NEOX = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **_TOKENS,
}
_LIKE_GPT2 = {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4, "n_positions": 64, **_TOKENS}

CONFIGS = {
    "llama": LlamaConfig(**_LIKE_LLAMA),
    "qwen2": Qwen2Config(**_LIKE_LLAMA),
    "qwen3": Qwen3Config(**_LIKE_LLAMA, head_dim=8),
    "gemma3": Gemma3TextConfig(**_LIKE_LLAMA, head_dim=8, sliding_window=16),
    "mistral": MistralConfig(**_LIKE_LLAMA),
    "phi3": Phi3Config(**_LIKE_LLAMA),
    "mixtral": MixtralConfig(**_LIKE_LLAMA, num_local_experts=4),
    "olmo": OlmoConfig(**_LIKE_LLAMA),
    "cohere": CohereConfig(**_LIKE_LLAMA),
    "gpt2": GPT2Config(**_LIKE_GPT2),
    "gptj": GPTJConfig(**_LIKE_GPT2, rotary_dim=8),
    "gpt_neox": GPTNeoXConfig(**_LIKE_NEOX, intermediate_size=48),
    "opt": OPTConfig(**_LIKE_NEOX, ffn_dim=48, word_embed_proj_dim=HIDDEN),
    "bloom": BloomConfig(vocab_size=VOCAB, hidden_size=HIDDEN, n_layer=LAYERS, n_head=4, **_TOKENS),
    "falcon": FalconConfig(**_LIKE_NEOX),
    "bert": BertConfig(**_LIKE_NEOX, intermediate_size=48),
    "t5": T5Config(vocab_size=VOCAB, d_model=HIDDEN, d_ff=48, d_kv=8, num_layers=2, num_heads=4, **_TOKENS),
}
FAMILIES = tuple(CONFIGS)
DECODERS = tuple(name for name in CONFIGS if name not in ("bert", "t5"))


def build(family: str, *, attn: str | None = None, seed: int = 0) -> PreTrainedModel:
    """A model of the family in eval mode, the same weights for the same seed."""
    torch.manual_seed(seed)
    auto = AutoModelForCausalLM if family in DECODERS else AutoModel
    options = {"attn_implementation": attn} if attn else {}
    return auto.from_config(deepcopy(CONFIGS[family]), **options).eval()  # the attention is written into the config


def tokens(family: str = "llama", *, rows: int = 2, length: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs that the family takes."""
    ids = torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "decoder_input_ids": ids} if family == "t5" else {"input_ids": ids}
