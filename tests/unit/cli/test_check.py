"""check on the command line, as a person and a pipeline use it."""

import json
from pathlib import Path
from typing import Any

import pytest

import noisescope.models
from noisescope.cli import main
from noisescope.errors import StoreError
from noisescope.gate.history import Entry, append

FIXTURES = Path(__file__).parents[2] / "fixtures"
LLAMA, GPT2 = str(FIXTURES / "llama"), str(FIXTURES / "gpt2")
SMALL = ("--n-samples", "70", "--max-length", "16", "--operators", "softmax,linear", "--noise-scale", "0.1")
GOLDEN = Path(__file__).parents[2] / "golden" / "report-v1.json"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline of the fixture."""
    file = tmp_path_factory.mktemp("baseline") / "baseline.json"
    assert main(["check", LLAMA, "--save-baseline", str(file), *SMALL]) == 0
    return file


def test_a_baseline_says_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "b.json"
    assert main(["check", LLAMA, "--save-baseline", str(file), "--n-samples", "8", "--max-length", "8"]) == 0
    shown = capsys.readouterr().out
    assert "llama: clean accuracy" in shown
    assert "10 operators, 8 samples," in shown
    assert shown.splitlines()[-1] == f"Baseline: {file}"
    assert main(["check", LLAMA, "--save-baseline", str(file)]) == 2
    assert "is there already; use another name or --overwrite" in capsys.readouterr().err


def test_the_files_of_a_check(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Passed, then held to a limit that cannot be held; both are in the history."""
    history = str(tmp_path / "history")
    first = ["check", LLAMA, "--baseline", str(good), "--history", history, "--max-degradation", "0.5"]
    assert main([*first, "--label", "step 1", "--output", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    assert "llama against llama: relative_gaussian noise of scale 0.1 on python docs, 70 samples" in shown
    assert "forward passes" in shown
    assert "PASSED: none of 3 operators" in shown
    assert "would be seen in 4 of 5 cases" in shown
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        "check.html",
        "check.json",
        "check.md",
        "junit.xml",
        "trend.png",
    ]
    found = json.loads((tmp_path / "one" / "check.json").read_text())
    assert (found["outcome"], found["version"], [row["label"] for row in found["history"]]) == ("passed", 1, ["step 1"])
    assert found["cost"] <= 12

    second = [*first[:-1], "0.0001", "--label", "step 2", "--output", str(tmp_path / "two")]
    assert main(second) in (1, 11)
    found = json.loads((tmp_path / "two" / "check.json").read_text())
    assert [row["label"] for row in found["history"]] == ["step 1", "step 2"]
    assert "`step 2`" in (tmp_path / "two" / "check.md").read_text()
    assert "data:image/png;base64," in (tmp_path / "two" / "check.html").read_text()
    assert main(second) == 2
    assert "is there already; use another directory (--output) or --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "check: expected --baseline FILE, or --save-baseline FILE to make one first; one of the two"),
        (["--baseline", "{good}", "--save-baseline", "b.json"], 2, "one of the two"),
        (["--baseline", "nowhere.json"], 2, "--baseline: nowhere.json: no such file; make it with"),
        (["--baseline", "{cut}"], 2, "cut.json: not a baseline ("),
        (["--baseline", "{old}"], 2, "old.json: version: got 0, expected 1; make the baseline anew with this release"),
        (["--baseline", "{good}", "--max-degradation", "0"], 2, "--max-degradation: got 0"),
        (["--baseline", "{good}", "--max-degradation", "1.5"], 2, "--max-degradation: got 1.5"),
        (["--baseline", "{good}", "--resolution", "0.01"], 2, "--resolution: got 0.01"),
        (["--baseline", "{good}", "--noise-scale", "0.2"], 2, "--noise-scale: got 0.2, but the baseline was made with"),
        (["--baseline", "{good}", "--operators", "sofmax"], 2, 'did you mean "softmax"?'),
        (["--baseline", "{good}", "--n-samples", "30"], 2, "made with another n_samples (70, now 30)"),
        (["--baseline", "{good}", "--data", "nowhere.txt"], 2, "--data: nowhere.txt"),
        (["--baseline", "{good}", "--data", "{text}"], 2, "made with another"),
        (["--baseline", "{report}"], 2, "a report of other operators"),
        (["--baseline", "{good}", "--output", "{good}"], 5, "is a file, expected a directory"),
        (["--baseline", "{good}", "--history", "{other}"], 2, "use another history file (--history)"),
        (["--baseline", "{good}", "--history", "{empty}"], 5, "line is damaged, so nothing is known of this run; use"),
        (["--baseline", "{good}", "--history", "{directory}"], 5, "expected a file; choose another --history"),
        (["--baseline", "{good}", "--label", "step"], 2, "--label: names the checkpoint in a history; give the file"),
        (["--save-baseline", "b.json", "--max-degradation", "0.1"], 2, "--max-degradation: is not looked at with"),
        (["--save-baseline", "b.json", "--data", "{empty}"], 2, "empty, expected text"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    arguments: list[str],
    code: int,
    said: str,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "given"
    place.mkdir()
    content = good.read_text()
    for name, text in {
        "cut.json": content[: len(content) // 2],
        "old.json": content.replace('"version":1', '"version":0'),
        "text.txt": "a text that is not the one of the baseline, " * 400,
        "empty.txt": "\n",
    }.items():
        (place / name).write_text(text)
    append(place / "other", {"noise_scale": 0.2}, Entry("old", "passed", 0.4, {}, "w", "b", 9.0))
    (place / "directory").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(noisescope.models, "load", _loaded())
    monkeypatch.setattr("noisescope.gate.checking.evaluate", None)  # nothing is measured first
    files = {path.stem: str(path) for path in place.iterdir()} | {"good": str(good), "report": str(GOLDEN)}
    assert main(["check", LLAMA, *(part.format(**files) if part[0] == "{" else part for part in arguments)]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("noisescope: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert not list(work.iterdir())


def test_operators_in_another_order_are_the_same(good: Path, tmp_path: Path) -> None:
    assert json.loads(good.read_text())["question"]["operators"] == ["softmax", "linear"]
    asked = ["check", LLAMA, "--baseline", str(good), "--operators", "linear,softmax"]
    assert main([*asked, "--output", str(tmp_path / "out")]) in (0, 11)


def test_a_history_that_cannot_be_written_takes_no_verdict_with_it(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(*_: object) -> None:
        raise StoreError("history: in use by process 7")

    monkeypatch.setattr("noisescope.gate.history.append", busy)
    asked = ["check", LLAMA, "--baseline", str(good), "--history", str(tmp_path / "h"), "--max-degradation", "1e-9"]
    assert main([*asked, "--output", str(tmp_path / "out")]) in (1, 11)
    shown = capsys.readouterr()
    assert "the result stands, but the history lacks it or is not drawn: history: in use by process 7" in shown.err
    assert shown.out.splitlines()[-1] == f"Report: {tmp_path / 'out' / 'check.html'}"
    assert {"check.json", "junit.xml"} <= {path.name for path in (tmp_path / "out").iterdir()}


def _loaded() -> Any:
    """Loads the fixture once: nothing here changes it."""
    real = noisescope.models.load
    kept = _MODELS

    def load(name: str, **given: Any) -> Any:
        if name not in kept:
            kept[name] = real(name, **given)
        return kept[name]

    return load


_MODELS: dict[str, Any] = {}


def test_another_model_is_refused(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GPT2, "--baseline", str(good), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "made with another architecture (LlamaForCausalLM, now GPT2LMHeadModel)" in said
    assert not (tmp_path / "out").exists()
