"""trace, compare and validate-migration on the command line, as a person uses them."""

import json
from pathlib import Path

import pytest

from noisescope.cli import main

LLAMA = str(Path(__file__).parents[2] / "fixtures" / "llama")
SMALL = ("--n-samples", "2", "--max-length", "16")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference, a healthy suspect in another dtype, a broken one, and one more healthy."""
    place = tmp_path_factory.mktemp("traces")
    assert main(["trace", LLAMA, "-o", str(place / "good.trace"), "--inputs", *SMALL]) == 0
    assert main(["trace", LLAMA, "-o", str(place / "narrow.trace"), "--dtype", "bfloat16", *SMALL]) == 0
    assert main(["trace", LLAMA, "-o", str(place / "again.trace"), "--no-floor", *SMALL]) == 0
    broken = ["--inputs-from", str(place / "good.trace"), "--emulate", "gain:0.1@3.linear", "--no-floor"]
    assert main(["trace", LLAMA, "-o", str(place / "bad.trace"), *broken]) == 0
    return place


def test_a_healthy_pair(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compare", str(home / "good.trace"), str(home / "narrow.trace"), "--output", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert code == 0
    assert "same model, same tokens; differs: dtype (float32 -> bfloat16)" in shown
    assert "no divergence beyond the noise floor" in shown
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.html",
        "comparison.json",
        "comparison.md",
    ]


def test_a_broken_one(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compare", str(home / "good.trace"), str(home / "bad.trace"), "--output", str(tmp_path)])
    shown = capsys.readouterr().out
    assert code == 10
    assert "first divergence   model.layers.3.mlp.down_proj.linear.0.forward   SQNR 20 dB" in shown
    assert "L3 " in shown
    assert "SOURCE" in shown
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert found["verdict"]["sources"] == [3]


def test_the_odd_one_out(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = [str(home / f"{name}.trace") for name in ("good", "bad", "again")]
    assert main(["compare", *traces, "--output", str(tmp_path)]) == 10
    assert "bad.trace is the odd one out" in capsys.readouterr().out
    assert json.loads((tmp_path / "vote.json").read_text())["odd"] == "bad.trace"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vote.html", "vote.json", "vote.md"]
    assert main(["compare", *traces, "--output", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["compare", *traces, "--report", str(tmp_path), "--output", str(tmp_path / "x")]) == 2


def test_the_gate(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = str(home / "good.trace"), str(home / "bad.trace")
    assert main(["validate-migration", good, bad, "--layers", "0-2", "--max-mape", "0.05"]) == 0
    junit = tmp_path / "junit.xml"
    assert main(["validate-migration", good, bad, "--max-mape", "0.001", "--junit", str(junit)]) == 1
    assert "FAILED layer 3: mape" in capsys.readouterr().out
    assert junit.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["compare", "{good}"], 2, "expected the reference and a suspect"),
        (["compare", "{good}", "nowhere.trace"], 2, "nowhere.trace: no such file; make it with"),
        (["compare", "{good}", "{bad}", "--map", "nowhere.json"], 2, "nowhere.json: no such file"),
        (["compare", "{good}", "{bad}", "--report", "nowhere"], 2, "--report: "),
        (["compare", "{good}", LLAMA], 2, "cannot be read as a trace"),
        (
            ["validate-migration", "{good}", "{bad}", "--layers", "99"],
            3,
            "--layers: 99 is not in the reference's trace",
        ),
        (["validate-migration", "{good}", "{bad}", "--max-mape", "-1"], 2, "--max-mape: got -1"),
        (["trace", LLAMA, "-o", "{good}"], 2, "is there already"),
        (["trace", LLAMA, "-o", "x.trace", "--emulate", "tf23"], 2, 'did you mean "tf32"?'),
        (["trace", LLAMA, "-o", "x.trace", "--emulate", "tf32@77"], 3, "77"),
        (["trace", LLAMA, "-o", "x.trace", "--sites", "*.nowhere"], 3, "--sites: no operator of the model matches"),
        (["trace", LLAMA, "-o", "x.trace", "--decode", "400", *SMALL], 2, "--decode: got 400"),
        (["trace", LLAMA, "-o", "x.trace", "--inputs-from", "{narrow}"], 2, "holds no hidden states"),
        (
            ["trace", LLAMA, "-o", "x.trace", "--inputs-from", "{good}", "--batch-size", "2"],
            2,
            "--batch-size: tokens and stages are those of --inputs-from",
        ),
        (
            ["trace", LLAMA, "-o", "x.trace", "--inputs", "--outputs-only"],
            2,
            "--inputs: a trace of logits alone has no hidden states",
        ),
        (["trace", LLAMA, "-o", "x.trace", "--data", "nowhere.txt"], 2, "--data: nowhere.txt"),
        (["locate", LLAMA, "--reference", "nowhere.trace"], 2, "--reference: nowhere.trace: no such file"),
        (["locate", LLAMA, "--method", "fingerprint"], 2, "--reference: the fingerprint method needs"),
        (["locate", LLAMA, "--method", "fingerprint", "--reference", "{good}"], 2, "does not hold logits"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    arguments: list[str],
    code: int,
    said: str,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {name: str(home / f"{name}.trace") for name in ("good", "bad", "narrow")}
    assert main([part.format(**names) if part.startswith("{") else part for part in arguments]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("noisescope: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sites", "said"),
    [("*.0.mlp.down_proj.*", "; all values would take 8.2 kB\n"), ("*.mlp.*", "; all values would take 655 kB\n")],
)
def test_sizes_are_told_in_their_unit(
    sites: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", LLAMA, "-o", str(tmp_path / "a.trace"), "--no-floor", "--sites", sites, *SMALL]) == 0
    assert said in capsys.readouterr().out
