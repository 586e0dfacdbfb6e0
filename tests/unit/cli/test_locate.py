"""`noisescope locate` as a person meets it: a line for each method, the verdict, its files, its exit code."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import noisescope.locating
from noisescope.cli import main
from noisescope.cli.locate import METHODS
from noisescope.store.encoding import decode, encode
from trained import FIXTURES

pytestmark = pytest.mark.usefixtures("one_thread")

LLAMA = FIXTURES / "llama"
FAULT = "saturation:0.2@2.linear"
FILES = ["verdict.html", "verdict.json", "verdict.md"]


def run(*given: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["locate", *map(str, given)])
    return code, out.getvalue(), err.getvalue()


def verdict_of(home: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"a bare {constant}")

    text = (home / "verdict.json").read_text()
    json.loads(text, parse_constant=refuse)
    return decode(text)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, str, str]]:
    """A run with a simulated fault, and where it left its files."""
    home = tmp_path_factory.mktemp("locate") / "out"
    return home, run(LLAMA, "--simulate", FAULT, "--output", home)


# --- verdicts ---------------------------------------------------------------------------------------------------


def test_a_healthy_device_is_exit_code_0(tmp_path: Path) -> None:
    code, out, err = run(LLAMA, "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    methods, verdict, report = out.splitlines()[:-2], *out.splitlines()[-2:]
    assert [line.split()[0] for line in methods] == ["repeat", "host", "identities", "weights"]
    assert verdict.startswith("Verdict: HEALTHY   ")
    assert report == f"Report: {tmp_path / 'out' / 'verdict.html'}"
    found = verdict_of(tmp_path / "out")
    assert found["verdict"]["outcome"] == "healthy"
    assert found["config"]["model"] == "llama"


def test_a_fault_is_exit_code_10_and_its_truth_is_told(faulty: tuple[Path, tuple[int, str, str]]) -> None:
    home, (code, out, err) = faulty
    assert (code, err) == (10, "")
    *_, verdict, truth, report = out.splitlines()
    assert verdict.startswith("Verdict: FAULTY   layer 2, linear (mlp.down_proj), looks like clipping")
    assert truth == "truth: layer 2, linear (mlp.down_proj), rank 1"
    assert report == f"Report: {home / 'verdict.html'}"


def test_all_files_are_there_and_the_json_is_strict(faulty: tuple[Path, tuple[int, str, str]]) -> None:
    home, _ = faulty
    assert sorted(path.name for path in home.iterdir()) == FILES
    found = verdict_of(home)
    assert found["truth"][0]["rank"] == 1
    assert encode(found) == (home / "verdict.json").read_text()
    assert "layer 2, linear" in (home / "verdict.md").read_text()


def test_the_same_question_gives_the_same_bytes(faulty: tuple[Path, tuple[int, str, str]], tmp_path: Path) -> None:
    run(LLAMA, "--simulate", FAULT, "--output", tmp_path)
    assert all((tmp_path / name).read_bytes() == (faulty[0] / name).read_bytes() for name in FILES)


def test_several_faults_and_one_that_changes_nothing(tmp_path: Path) -> None:
    given = ("--simulate", "gain@head", "--simulate", "dead_zone:1e-30@3")
    code, out, _ = run(LLAMA, *given, "--method", "host", "--output", tmp_path)
    assert code == 10
    truths = [line for line in out.splitlines() if line.startswith("truth")]
    assert truths[0] == "truth: head, linear (lm_head), rank 1"
    assert truths[1].startswith("truth: layer 3, residual (")
    assert truths[1].endswith("), inert: changed no bit")


def test_every_flag_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    real = noisescope.locating.locate

    def locate(model: Any, prompts: Any, **given: Any) -> Any:
        asked.update(given, prompts=prompts, dtype=str(model.dtype))
        return real(model, prompts, **{**given, "method": "host"})

    monkeypatch.setattr("noisescope.locating.locate", locate)
    (tmp_path / "text.txt").write_text("a few words about nothing in particular, " * 40)
    flags = "--method host --budget 7 --runs 3 --precision-mode tf32 --seed 5 --blocks model.layers --dtype bfloat16"
    code, *_ = run(LLAMA, *flags.split(), "--data", tmp_path / "text.txt", "--output", tmp_path / "out")
    assert code == 0
    expected = {"method": "host", "budget": 7.0, "runs": 3, "precision_mode": "tf32", "seed": 5}
    expected |= {"blocks": "model.layers", "dtype": "torch.bfloat16", "prompts": str(tmp_path / "text.txt")}
    assert {name: asked[name] for name in expected} == expected
    assert (asked["name"], asked["checkpoint"]) == ("llama", LLAMA / "model.safetensors")


def test_weights_of_several_files_are_looked_for_in_their_directory(tmp_path: Path) -> None:
    shutil.copytree(LLAMA, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    AutoModelForCausalLM.from_pretrained(LLAMA).save_pretrained(tmp_path / "model", max_shard_size="300KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    code, out, _ = run(tmp_path / "model", "--method", "host", "--output", tmp_path / "out")
    assert code == 0
    assert "weights  all 75 tensors are those of the file" in out


def test_the_methods_are_those_of_the_library() -> None:
    assert METHODS == noisescope.locating.METHODS


# --- what cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--method hots", 2, '--method: unknown method "hots", did you mean "host"? (auto repeat'),
        ("--budget 0", 2, "--budget: got 0.0, expected a number > 0"),
        ("--budget nan", 2, "--budget: got nan, expected a number > 0"),
        ("--runs 0", 2, "--runs: got 0, expected a whole number of at least 1"),
        ("--runs 1", 2, "--runs: got 1, expected a whole number of at least 2"),
        ("--seed -1", 2, "--seed: got -1"),
        ("--dtype float17", 2, '--dtype: unknown dtype "float17", did you mean "float16"?'),
        ("--device nowhere", 2, 'device "nowhere" cannot be used here'),
        ("--data absent.txt", 2, "--data: absent.txt: no such file"),
        ("--simulate nonsense", 2, '--simulate: got "nonsense", expected kind:magnitude@layer'),
        ("--simulate saturatoin@2", 2, '--simulate: unknown fault "saturatoin", did you mean "saturation"?'),
        ("--simulate stuck_at:5@2", 2, "--simulate: stuck_at: got magnitude 5, expected a number above 0, at most 1"),
        ("--simulate wrong_rounding:30@2", 2, "wrong_rounding: got magnitude 30, expected a number of bits from 1"),
        ("--simulate noise:much@2", 2, '--simulate: magnitude: got "much", expected a number'),
        ("--simulate noise@2,sparsity=0", 2, "--simulate: sparsity: got 0, expected a share"),
        ("--simulate lut_exp@2.linear", 2, "--simulate: lut_exp exists at softmax, not at linear"),
        ("--simulate noise@99", 3, "--simulate: 99 is out of range, the model has 0 to 7"),
        ("--simulate noise@2.conv", 3, '--simulate: unknown operator of layer 2 "conv"'),
        ("--simulate noise@2.nope.linear", 3, '--simulate: 2.nope.linear: no module of layer 2 ends in "nope"'),
        ("--blocks nowhere", 4, 'blocks: "nowhere" names neither'),
        ("--bogus", 2, "No such option: --bogus"),
    ],
)
def test_questions_that_cannot_be_meant(tmp_path: Path, arguments: str, code: int, message: str) -> None:
    """One line, the right exit code, and nothing written."""
    found, out, err = run(LLAMA, *arguments.split(), "--output", tmp_path / "out")
    assert (found, out) == (code, "")
    assert err.startswith("noisescope: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "out").exists()


def test_a_fault_that_cannot_be_meant_is_told_of_before_a_model_is_looked_for(tmp_path: Path) -> None:
    code, _, err = run("./no/such/model", "--simulate", "nonsense@1", "--output", tmp_path / "out")
    assert code == 2
    assert "--simulate" in err


@pytest.mark.parametrize(
    ("method", "value", "where"),
    [
        ("host", float("nan"), "model.layers.1.mlp.up_proj.linear.0.forward"),
        ("auto", 1e38, "lm_head.linear.0.forward"),
    ],
)
def test_a_model_that_computes_no_numbers(tmp_path: Path, method: str, value: float, where: str) -> None:
    """The device is not to blame for what the host computes too."""
    model = AutoModelForCausalLM.from_pretrained(LLAMA)
    weight = model.lm_head.weight if method == "auto" else model.model.layers[1].mlp.up_proj.weight[3, 2]
    weight.data.mul_(value)
    model.save_pretrained(tmp_path / "broken")
    shutil.copy(LLAMA / "tokenizer.json", tmp_path / "broken")
    code, out, err = run(tmp_path / "broken", "--method", method, "--output", tmp_path / "out")
    assert (code, out) == (4, "")
    assert f"the first value that is not finite is at {where}" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_verdict_is_not_overwritten_unasked(tmp_path: Path) -> None:
    quick = (LLAMA, "--method", "host", "--output", tmp_path)
    assert run(*quick)[0] == 0
    before = (tmp_path / "verdict.json").read_bytes()
    code, out, err = run(*quick, "--simulate", "noise@2")
    assert (code, out) == (2, "")
    expected = f"{tmp_path} already holds a verdict of llama; use another directory (--output) or --overwrite"
    assert err == f"noisescope: {expected}\n"
    assert (tmp_path / "verdict.json").read_bytes() == before
    assert run(*quick, "--simulate", "noise@2", "--overwrite")[0] == 10
    (tmp_path / "verdict.json").unlink()
    assert "verdict.md: is there already" in run(*quick)[2]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_output_that_cannot_be_written_is_refused_before_a_model_is_looked_for(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    code, out, err = run("./no/such/model", "--output", tmp_path / place)
    assert (code, out) == (5, "")
    assert err.startswith(f"noisescope: cannot write {tmp_path / place}: ")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_verdict_that_cannot_be_saved_is_shown_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("noisescope.store.files.write_all", full)
    code, out, err = run(LLAMA, "--method", "host", "--output", tmp_path / "out")
    assert code == 5
    assert "Verdict: HEALTHY" in out
    assert "Report:" not in out
    assert "No space left on device" in err
    assert not list((tmp_path / "out").iterdir())
