"""Weights in memory against their file: one changed bit is found, and told apart from wrong arithmetic."""

from pathlib import Path

import pytest
import torch
from grid import tokens
from safetensors.torch import load_file, save_file

from noisescope.errors import ModelError
from noisescope.locating import locate
from trained import FIXTURES, fixture


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_model_as_it_was_loaded_has_the_weights_of_its_file(name: str) -> None:
    verdict = locate(fixture(name)[0], tokens(name), checkpoint=FIXTURES / name, budget=6)
    assert verdict.healthy
    assert "the weights were not compared with a file" not in verdict.sections["verdict"]["not_covered"]


def test_one_wrong_bit_in_memory_is_named() -> None:
    model, _ = fixture("llama")
    weight = model.get_parameter("model.layers.3.mlp.up_proj.weight")
    with torch.no_grad():
        weight.view(torch.int32).view(-1)[77] ^= 1
    verdict = locate(model, tokens("llama"), checkpoint=FIXTURES / "llama", budget=6)
    (suspect,) = verdict.sites
    assert (suspect.layer, suspect.kind, suspect.operator) == (3, "corrupted memory", "weight")
    assert suspect.name == "model.layers.3.mlp.up_proj.weight"
    assert "1 of" in suspect.evidence[0]
    assert locate(model, tokens("llama"), budget=6).healthy  # the arithmetic is right, by the wrong number


def test_a_tensor_that_the_file_lacks_is_said(tmp_path: Path) -> None:
    tensors = load_file(FIXTURES / "llama" / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    verdict = locate(fixture("llama")[0], tokens("llama"), checkpoint=tmp_path, budget=6)
    assert verdict.healthy
    assert any("model.norm.weight" in line for line in verdict.sections["verdict"]["not_covered"])


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no")
    for checkpoint in (tmp_path, tmp_path / "model.safetensors", tmp_path / "nothing.safetensors"):
        with pytest.raises(ModelError):
            locate(fixture("llama")[0], tokens("llama"), checkpoint=checkpoint, budget=6)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no"):
        locate(fixture("llama")[0], tokens("llama"), checkpoint=tmp_path / "empty", budget=6)
