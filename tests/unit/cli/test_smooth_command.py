"""`noisescope smooth` as a person meets it: a table, a model for plain transformers, one line for what is wrong."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import families
from noisescope.cli import main
from trained import FIXTURES

pytestmark = pytest.mark.usefixtures("one_thread")

LLAMA = str(FIXTURES / "llama")
SMALL = ("--calibration-samples", "4", "--max-length", "16")


def test_a_model_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "smoothed"
    assert main(["smooth", LLAMA, "-o", str(place), "--alpha", "0.5", *SMALL]) == 0
    shown, said = capsys.readouterr()
    assert not said
    assert "llama, int8 weights and int8 activations: 32 of 32 groups smoothed" in shown
    assert "and 22 more, with less gain" in shown
    assert "same function: logits moved by at most" in shown
    assert f"Model: {place}   open it with AutoModelForCausalLM.from_pretrained('{place}')" in shown
    assert f"noisescope diagnose {place} --level channel" in shown
    one, two = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (LLAMA, place))
    given = AutoTokenizer.from_pretrained(place)("The value of an expression is", return_tensors="pt")
    with torch.no_grad():
        before, after = one(**given).logits, two(**given).logits
    assert not torch.equal(before, after)
    assert (after - before).abs().max() <= 1e-4 * before.std()
    assert json.loads((place / "smoothing.json").read_text())["config"]["alpha"] == 0.5

    assert main(["smooth", LLAMA, "-o", str(place), *SMALL]) == 2
    assert f"{place}: is there already; use another directory (--output) or --overwrite" in capsys.readouterr().err
    assert main(["smooth", LLAMA, "-o", str(place), "--overwrite", "--dtype", "bfloat16", "-v", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "the same bit for bit" in shown
    assert shown.count("mlp.up_proj -> down_proj") == 8
    assert AutoModelForCausalLM.from_pretrained(place).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--alpha", "2"], 2, "--alpha: got 2.0, expected a number >= 0, at most 1"),
        (["--weights", "int9"], 2, '--weights: unknown format "int9", did you mean "int8"?'),
        (["--activations", "int8:x"], 2, "--activations: int8: unknown option"),
        (["--calibration-samples", "1"], 2, "--calibration-samples: got 1"),
        (["--data", "nowhere.txt"], 2, "--data: nowhere.txt"),
    ],
)
def test_one_line_for_what_is_wrong(
    arguments: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smooth", LLAMA, "-o", str(tmp_path / "x"), *arguments]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"noisescope: {said}")
    assert not list(tmp_path.iterdir())


def test_models_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = tmp_path / "bert"
    families.build("bert").save_pretrained(encoder)
    assert main(["smooth", str(encoder), "-o", str(tmp_path / "x")]) == 4
    assert "expected a causal language model" in capsys.readouterr().err
    packed = Path(shutil.copytree(LLAMA, tmp_path / "packed"))
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (packed / "config.json").write_text(json.dumps(config))
    assert main(["smooth", str(packed), "-o", str(tmp_path / "x")]) in (4, 6)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_place_that_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    assert main(["smooth", LLAMA, "-o", str(tmp_path), "--overwrite"]) == 2
    assert "is no smoothed model, and is not replaced" in capsys.readouterr().err
    assert main(["smooth", LLAMA, "-o", str(tmp_path / "thesis.tex"), "--overwrite"]) == 5
    assert (tmp_path / "thesis.tex").read_text() == "all of it"
