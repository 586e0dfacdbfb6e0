"""plan migration and plan fault-tests on the command line, as a person uses them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import planned
from noisescope.cli import main
from noisescope.errors import StoreError
from noisescope.planning.exports import Exports
from noisescope.planning.fault_running import FaultRunner
from noisescope.report import Report

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which somebody has diagnosed a model that is called by a path from there."""
    place = tmp_path_factory.mktemp("diagnosed")
    (place / "models").symlink_to(planned.MODEL.parent)
    before = Path.cwd()
    os.chdir(place)
    try:
        assert main(["diagnose", "models/llama", "--n-samples", "8", "--max-length", "16", "--output", "out"]) == 0
    finally:
        os.chdir(before)
    return place


@pytest.fixture
def there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another directory, from which it is planned."""
    monkeypatch.setenv("NOISESCOPE_PROGRAM", "noisescope")
    monkeypatch.chdir(tmp_path)
    return home


def printed(shown: str) -> list[list[str]]:
    """The commands to validate with, as words."""
    lines = shown.partition("validate with\n")[2].splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(" noisescope ")]


def test_the_printed_commands_validate_the_plan(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the same device everything holds; on one that gives too much in an early layer the gates say so."""
    assert main(["plan", "migration", str(there / "out")]) == 0
    commands = printed(capsys.readouterr().out)
    assert [words[0] for words in commands] == ["trace", "trace", "validate-migration", "validate-migration", "compare"]
    assert [main(words) for words in commands] == [0, 0, 0, 0, 0]
    assert "passed: " in capsys.readouterr().out
    suspect, *gates = commands[1:]
    assert main([*suspect, "--emulate", "gain:1@embed", "--no-floor", "--overwrite"]) == 0
    assert [main(words) for words in gates[:2]] == [1, 1]
    assert main([*gates[2], "--overwrite"]) == 10
    assert main(["plan", "migration", str(there / "out"), "--compare", "noisescope-migration", "--overwrite"]) == 0
    assert "MAPE " in capsys.readouterr().out
    plan = json.loads(Path("noisescope-plan/migration.json").read_text())
    assert plan["comparison"]["outcome"] == "diverges"
    assert str(there) not in json.dumps(plan)


def commands_of(file: str) -> list[list[str]]:
    return [shlex.split(step["command"])[1:] for step in json.loads(Path(file).read_text())["commands"]]


def test_the_commands_in_the_files_work_or_say_what_to_put_in(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the directory in which the plan was made; a model by an absolute path is no name for others."""
    monkeypatch.chdir(there)
    assert main(["plan", "migration", "out", "--output", "relative"]) == 0
    trace, *_, compare = commands_of("relative/migration.json")
    assert trace[1] == "models/llama"
    assert compare[compare.index("--report") + 1] == "out"
    assert main([*trace[:-1], "relative/reference.trace", "--no-floor"]) == 0
    absolute = [str(there / "out"), "--model", str(planned.MODEL), "--output", "absolute"]
    assert main(["plan", "migration", *absolute]) == 0
    trace, *_, compare = commands_of("absolute/migration.json")
    assert trace[:2] == ["trace", "MODEL"]
    assert compare[compare.index("--report") + 1] == "REPORT"
    told = Path("absolute/migration.md").read_text()
    assert "put what you call the model for MODEL" in told
    assert "put the directory of its report for REPORT" in told
    assert not any(str(place) in told for place in (there, planned.MODEL))


def test_a_local_model_of_which_nothing_but_its_name_is_known_has_no_command(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned.saved(Path("alone"))
    assert main(["plan", "migration", "alone"]) == 0
    shown = capsys.readouterr().out
    assert "noisescope trace MODEL " in shown
    assert "put what you call the model for MODEL" in shown


def test_tests_of_faults_are_written_with_the_model_that_was_diagnosed(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "fault-tests", str(there / "out"), "--output", "faults"]) == 0
    shown = capsys.readouterr().out
    assert "operator-1  bit_flip" in shown
    assert " pytest faults/test_faults.py\n" in shown
    manifest = json.loads(Path("faults/fault_tests.json").read_text())
    assert (Path("faults") / manifest["model"]["load"]).samefile(planned.MODEL)
    assert sorted(path.name for path in Path("faults").iterdir()) == [
        "fault_tests.csv",
        "fault_tests.json",
        "test_faults.py",
    ]
    assert main(["plan", "fault-tests", str(there / "out"), "--model", "org/name", "--output", "other"]) == 0
    assert json.loads(Path("other/fault_tests.json").read_text())["model"]["load"] == "org/name"


def test_tests_of_faults_use_the_tokenizer_of_the_diagnosis(there: Path, tmp_path: Path) -> None:
    """The model is a directory of weights alone, and its tokenizer is another."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bare" / name).symlink_to(planned.MODEL / name)
    small = ["--n-samples", "8", "--max-length", "16", "--level", "operator", "--operators", "softmax"]
    assert main(["diagnose", "bare", "--tokenizer", str(planned.MODEL), "--output", "out", *small]) == 0
    assert main(["plan", "fault-tests", "out", "--output", "faults"]) == 0
    model = json.loads(Path("faults/fault_tests.json").read_text())["model"]
    assert (Path("faults") / model["tokenizer"]).samefile(planned.MODEL)
    assert "trust_remote_code" not in model
    assert FaultRunner.load("faults/fault_tests.json")._rows.ids.shape == (8, 16)
    assert main(["plan", "fault-tests", "out", "--output", "trusting", "--trust-remote-code"]) == 0
    assert json.loads(Path("trusting/fault_tests.json").read_text())["model"]["trust_remote_code"] is True


def test_the_data_of_fault_tests(there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [{"question": f"1 + {n}", "choices": ["2", "3"], "answer": 0} for n in range(9)]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    Path("text.txt").write_text("a text to run the tests on, " * 40)
    command = ["plan", "fault-tests", str(there / "out"), "--data"]
    for given, said in (("nowhere.txt", "nowhere.txt: "), ("/nope", "/nope: "), ("questions.jsonl", "has questions")):
        assert main([*command, given]) == 2
        error = capsys.readouterr().err
        assert error.startswith("noisescope: --data: ")
        assert said in error
        assert error.count("\n") == 1
    assert main([*command, "questions.jsonl:question", "--output", "field"]) == 0
    labelled = planned.sections()
    labelled["config"]["data"]["task"] = "multiple choice"
    planned.saved(tmp_path / "labelled", Report(labelled))
    assert main(["plan", "fault-tests", "labelled", "--data", "text.txt", "--output", "faults"]) == 0
    assert json.loads(Path("faults/fault_tests.json").read_text())["data"]["load"] == "../text.txt"


@pytest.mark.parametrize(("verb", "file"), [("migration", "migration.json"), ("fault-tests", "test_faults.py")])
def test_nothing_is_overwritten_unasked(there: Path, verb: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan").mkdir()
    (Path("plan") / file).write_text("mine")
    command = ["plan", verb, str(there / "out"), "--output", "plan"]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"noisescope: {Path('plan') / file}: is there already; use another directory (--output) or --overwrite\n"
    )
    assert (Path("plan") / file).read_text() == "mine"
    assert main([*command, "--overwrite"]) == 0
    assert (Path("plan") / file).read_text() != "mine"


@pytest.mark.parametrize("verb", ["migration", "fault-tests"])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none", None, "none: cannot be read (No such file or directory)"),
        ("report.json", "{", "not a report"),
        ("report.json", "[]", "schema_version: got none"),
        ("verdict.json", "{}", "the verdict of `locate`, not a report"),
    ],
)
def test_what_is_no_report_is_one_line(
    verb: str, name: str, content: str | None, said: str, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("given").mkdir()
    if content is not None:
        (Path("given") / name).write_text(content)
    given = "none" if content is None else "given"
    assert main(["plan", verb, given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["given"]


def test_a_comparison_of_another_model_is_refused(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = str(planned.MODEL.parent / "gpt2")
    for name in ("a", "b"):  # without a floor equal bits are equal all the same
        assert main(["trace", gpt2, "-o", f"{name}.trace", "--n-samples", "2", "--max-length", "8", "--no-floor"]) == 0
    assert main(["compare", "a.trace", "b.trace"]) == 0
    capsys.readouterr()
    assert main(["plan", "migration", str(there / "out"), "--compare", "noisescope-compare"]) == 2
    assert "comparison: " in (error := capsys.readouterr().err)
    assert "is of another model than the report" in error
    assert not Path("noisescope-plan").exists()
    assert main(["plan", "migration", str(there / "out"), "--compare", "a.trace"]) == 2
    assert "--compare: a.trace: not a comparison" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["migration", "fault-tests"])
def test_a_place_that_cannot_be_written_is_refused_at_once(
    verb: str, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert main(["plan", verb, str(there / "out"), "--output", "file/plan"]) == 5
    assert "is a file, expected a directory" in capsys.readouterr().err


def test_who_asks_for_no_plan_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    shown = capsys.readouterr().out
    assert "migration" in shown
    assert "fault-tests" in shown
    assert main(["plan", "migraton", "x"]) == 2
    assert "Did you mean 'migration'?" in capsys.readouterr().err


def test_planning_imports_no_torch(home: Path, tmp_path: Path) -> None:
    code = (
        "import sys, noisescope.cli as c; "
        f"assert c.main(['plan', 'migration', {str(home / 'out')!r}]) == 0; "
        f"assert c.main(['plan', 'fault-tests', {str(home / 'out')!r}]) == 0; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)


# --- number formats -------------------------------------------------------------------------------------------------

SMALL = ["--n-samples", "24", "--n-verified", "8", "--max-length", "12", "--batch-size", "32"]


def test_a_precision_plan_with_its_exports(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "precision", str(there / "out"), *SMALL, "--formats", "int4:group=32,asymmetric int8,bf16"]
    assert main([*command, "--avg-bits", "6"]) == 0
    shown = capsys.readouterr().out
    assert " bits on average: KL " in shown
    assert "exports  auto-round gptqmodel" in shown
    assert " not bitsandbytes: " in shown
    found = sorted(str(path.relative_to("noisescope-precision")) for path in Path("noisescope-precision").rglob("*.*"))
    assert found[:1] == ["exports/auto-round-layer-config.json"]
    assert found[-4:] == ["format-map.json", "precision.html", "precision.json", "precision.md"]
    assert str(there) not in Path("noisescope-precision/precision.json").read_text()
    assert main([*command, "--avg-bits", "8"]) == 2
    assert "precision.md: is there already" in capsys.readouterr().err
    stale = Path("noisescope-precision/exports/bitsandbytes-config.json")
    stale.write_text("of another plan")
    assert main([*command, "--avg-bits", "8", "--overwrite"]) == 0
    assert not stale.exists()


def test_the_plan_is_there_if_an_export_cannot_be_written(
    there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Exports, directory: Path) -> None:
        raise StoreError("no space")

    monkeypatch.setattr(Exports, "save", fail)
    assert main(["plan", "precision", str(there / "out"), *SMALL, "--formats", "int8,bf16", "--avg-bits", "9"]) == 5
    assert capsys.readouterr().err.endswith("no space\n")
    assert Path("noisescope-precision/precision.json").exists()


PAGE = Path(__file__).parents[3] / "docs" / "plan-precision.md"
DOCUMENTED = [line[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ noisescope plan precision ")]


@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_documented_commands_can_be_done(there: Path, command: str) -> None:
    words = [str(there / "out") if word == "noisescope-out" else word for word in shlex.split(command)[1:]]
    assert main([*words, *SMALL]) == 0


def test_a_minimal_fix(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "fix", str(there / "out"), *SMALL, "--format", "mxfp4", "--raised", "mxfp6"]
    assert main([*command, "--max-kl", "9"]) == 0
    assert "Nothing: all weights in mxfp4 are within 9.00 nats per token." in capsys.readouterr().out
    assert main([*command, "--max-kl", "1e-9", "--overwrite"]) == 1
    assert "No: with all weights raised from mxfp4 to mxfp6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        (
            "exports",
            5,
            "cannot write out/exports: out/exports is a file, expected a directory; choose another --output",
        ),
        ("exports/torchao-config.json", 2, "out/exports/torchao-config.json: is there already; use another directory"),
        (
            "format-map.json",
            2,
            "out/format-map.json: not a format map (Expecting value: line 1 column 1 (char 0)); move",
        ),
    ],
)
def test_a_place_for_a_precision_plan_that_is_taken(
    there: Path, name: str, code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path("out") / name).parent.mkdir(parents=True)
    (Path("out") / name).write_text("mine")
    before = sorted(Path("out").rglob("*"))
    assert main(["plan", "precision", str(there / "out"), *SMALL, "--output", "out"]) == code
    error = capsys.readouterr().err
    assert error.startswith(f"noisescope: {why}")
    assert error.count("\n") == 1
    assert sorted(Path("out").rglob("*")) == before
    assert (Path("out") / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--format", "none"], '--format: got "none", expected a format such as mxfp4'),
        (["--raised", "none"], '--raised: got "none", expected a format such as mxfp4'),
        (["--raised", "mxfp9"], '--raised: unknown format "mxfp9", did you mean "mxfp'),
        (["--format", "int8", "--raised", "int4"], "--raised: got int4, which has fewer bits than int8"),
    ],
)
def test_what_cannot_be_fixed(there: Path, flags: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "fix", str(there / "out"), *SMALL, "--max-kl", "1", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"noisescope: {why}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "code", "why"),
    [
        (["--avg-bits", "3"], 2, "--avg-bits: got 3, but the fewest with these formats is 4.25; allow more bits"),
        (["--avg-bits", "0"], 2, "--avg-bits: got 0.0, expected a number > 0"),
        (["--formats", "mxfp5"], 2, '--formats: unknown format "mxfp5", did you mean "mxfp'),
        (["--formats", "int4:group=0"], 2, '--formats: int4: got group "0", expected a number of elements'),
        (["--keep", "*.nothing"], 3, '--keep: "*.nothing" matches no weight'),
        (["--keep", "re:("], 2, '--keep: "re:(" is not a regular expression'),
        (["--strategy", "guess"], 2, '--strategy: got "guess", expected one of programme threshold'),
        (
            ["--strategy", "threshold", "--formats", "mxfp4,int8"],
            2,
            "--formats: the threshold rule needs one of 16 bits",
        ),
        (["--n-samples", "3"], 2, "--n-samples: got 3, expected a whole number of at least 16"),
        (["--model", "GPT2"], 4, "gpt2: is not the model of the report (llama): the weights differ"),
    ],
)
def test_what_cannot_be_planned(
    there: Path, flags: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(planned.MODEL.parent / "gpt2")
    given = [other if flag == "GPT2" else flag for flag in flags]
    assert main(["plan", "precision", str(there / "out"), *SMALL, *given]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(f"noisescope: {why}")
    assert shown.err.count("\n") == 1
    assert not Path("noisescope-precision/precision.json").exists()
