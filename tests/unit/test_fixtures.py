"""The trained fixture models: small, safe to load, of the shape other tests rely on, and really trained."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.activations import NewGELUActivation
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from fixtures.train import CONTEXT, FAMILIES, FIXTURES, VOCAB_SIZE, encode, perplexity, split_topics

TEXT = 'The "with" statement is used: naïve café, 1 + 1 == 2.\n\n   indented'


@pytest.fixture(scope="module", autouse=True)
def _quick(one_thread: None) -> None:
    """All of these are tiny."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def directory(request: pytest.FixtureRequest) -> Path:
    return FIXTURES / request.param


@pytest.fixture(scope="module")
def model(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory).eval()


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def held_out(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    return encode(split_topics()[1], tokenizer)


def test_directory_is_under_two_megabytes(directory: Path) -> None:
    assert sum(file.stat().st_size for file in directory.rglob("*")) < 2_000_000


def test_weights_are_safetensors_and_nothing_else_is_binary(directory: Path) -> None:
    assert {file.suffix for file in directory.iterdir()} == {".json", ".safetensors"}


def test_no_path_of_the_training_machine_is_kept(directory: Path) -> None:
    for file in directory.glob("*.json"):
        assert not json.loads(file.read_text()).get("_name_or_path"), file
        assert str(Path.home()) not in file.read_text(), file


def test_loads_without_missing_or_unexpected_weights(directory: Path) -> None:
    _, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info


def test_every_value_is_a_finite_float32(model: PreTrainedModel) -> None:
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.isfinite().all() for p in model.parameters())


def test_has_layers_enough_to_tell_apart(model: PreTrainedModel) -> None:
    assert model.config.num_hidden_layers >= 6


def test_tokenizer_and_model_agree(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == model.config.vocab_size == VOCAB_SIZE
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        assert getattr(tokenizer, name) == getattr(model.config, name) == getattr(model.generation_config, name)


def test_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_perplexity_is_far_below_uniform(model: PreTrainedModel, held_out: torch.Tensor) -> None:
    """Measured: see the README. The text differs a little between Python versions, hence the room above that."""
    assert perplexity(model, held_out) < VOCAB_SIZE / 10


def test_last_position_is_trained_too(model: PreTrainedModel, held_out: torch.Tensor) -> None:
    windows = held_out[: len(held_out) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    with torch.no_grad():
        logits = model(windows).logits[:, -17:-1]
    late_nats = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, -16:].flatten())
    assert late_nats < math.log(VOCAB_SIZE / 10)


def test_every_layer_matters_and_not_equally(model: PreTrainedModel, held_out: torch.Tensor) -> None:
    """Without layer L (its input is handed on) the model is worse, by an amount that depends on L."""
    tokens = held_out[: 4 * CONTEXT]
    clean = perplexity(model, tokens)
    worse_nats = [math.log(_perplexity_without(model, block, tokens) / clean) for block in _blocks(model)]
    assert min(worse_nats) > 0
    assert max(worse_nats) > 2 * min(worse_nats)


def test_left_padding_does_not_change_what_is_generated(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompts = ["The value of the expression", "If"]
    batch = tokenizer(prompts, padding=True, return_tensors="pt")
    alone = tokenizer(prompts[1], return_tensors="pt")
    padded = model.generate(**batch, max_new_tokens=8, do_sample=False)[1, -8:]
    assert torch.equal(padded, model.generate(**alone, max_new_tokens=8, do_sample=False)[0, -8:])


def test_llama_is_made_of_what_a_llama_is_made_of() -> None:
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "llama")
    block = model.model.layers[0]
    assert isinstance(block.input_layernorm, LlamaRMSNorm)
    assert model.config.hidden_act == "silu"
    assert 1 < model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_gpt2_is_made_of_what_a_gpt2_is_made_of() -> None:
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "gpt2")
    block = model.transformer.h[0]
    assert isinstance(block.attn.c_attn, Conv1D)
    assert isinstance(block.ln_1, nn.LayerNorm)
    assert block.ln_1.bias.count_nonzero() > 0
    assert isinstance(block.mlp.act, NewGELUActivation)
    assert model.lm_head.weight is model.transformer.wte.weight


def _blocks(model: PreTrainedModel) -> nn.ModuleList:
    return model.model.layers if model.config.model_type == "llama" else model.transformer.h


def _perplexity_without(model: PreTrainedModel, block: nn.Module, tokens: torch.Tensor) -> float:
    hook = block.register_forward_hook(lambda _, inputs, output: inputs[0])
    try:
        return perplexity(model, tokens)
    finally:
        hook.remove()
