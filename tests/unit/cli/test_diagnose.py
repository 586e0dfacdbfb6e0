"""`noisescope diagnose` as a person meets it: the report, the summary, and one line for everything that cannot be."""

import contextlib
import io
import json
import os
import shlex
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

import noisescope.diagnosis
from families import CONFIGS
from noisescope.cli import main
from noisescope.cli.bars import bars
from noisescope.errors import InputError
from noisescope.measure.texts import built_in_text
from noisescope.report import Report
from noisescope.specs import PRESETS, DiagnosisSpec
from trained import FIXTURES, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--n-samples", "4", "--max-length", "12", "--batch-size", "4")
KEYS = {
    "executive_summary",
    "operator_analysis",
    "layer_analysis",
    "channel_analysis",
    "map",
    "cross_level",
    "recommendations",
    "metrics",
    "coverage",
    "environment",
    "cost",
    "config",
    "readings",
    "next_steps",
    "schema_version",
}


def save(
    path: Path, family: str = "llama", *, auto: Any = AutoModelForCausalLM, words: int = 512, **other: int
) -> Path:
    """A tiny model with random weights and a fixture's tokenizer, in a directory."""
    config = deepcopy(CONFIGS[family])
    for name, value in {"vocab_size": words, **other}.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = auto.from_config(config)
    if path.name == "nan":
        model.model.layers[1].mlp.up_proj.weight.data[3, 2] = float("nan")
    model.save_pretrained(path)
    tokenizer("llama").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and data files, by name."""
    home = tmp_path_factory.mktemp("home")
    save(home / "tiny")
    save(home / "nan")
    save(home / "two layers", num_hidden_layers=2)
    save(home / "few words", words=64)
    save(home / "encoder", "bert", auto=AutoModel)
    save(home / "masked", "bert", auto=AutoModelForMaskedLM)
    for name, text in {
        "text.txt": built_in_text()[:10_000],
        "empty.txt": "",
        "empty.jsonl": "",
        "no field.jsonl": '{"text": "one two three four"}\n{"wrong": 1}\n',
        "one.jsonl": '{"text": "one two three four"}\n',
        "short.txt": "hello",
        "table.csv": "a,b\n1,2\n",
        "broken.jsonl": '{"text": "one two three"}\n{"text": ',
        "text.parquet": "not a parquet file",
    }.items():
        (home / name).write_text(text)
    return home


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["diagnose", *map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


def diagnose(home: Path, output: Path, *more: str | Path, model: str = "tiny") -> dict[str, Any]:
    """The report of a small run that is well."""
    code, out, err = run(home / model, "--data", home / "text.txt", *SMALL, "--output", output, *more)
    assert (code, err) == (0, "")
    assert out.endswith(f"Report: {output / 'report.html'}\n")
    return json.loads((output / "report.json").read_text())


# --- what comes out ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory and the summary of a whole diagnosis of a trained model."""
    output = tmp_path_factory.mktemp("trained") / "new" / "out"
    small = ("--n-samples", "8", "--max-length", "12", "--batch-size", "4")
    code, out, err = run(FIXTURES / "llama", "--data", home / "text.txt", *small, "--output", output)
    assert (code, err) == (0, "")
    return output, out


def test_the_report_has_the_documented_keys_and_no_others(trained: tuple[Path, str]) -> None:
    output, _ = trained
    shown = {name for name in os.listdir(output) if not name.startswith(".")}
    assert shown == {"report.json", "report.md", "report.html", "journal", "run.json"}
    sections = json.loads((output / "report.json").read_text())
    assert set(sections) == KEYS
    assert sections["config"]["model"] == "llama"
    assert sections["config"]["data"]["name"] == "text.txt"
    assert sections["schema_version"] == 2
    assert set(sections["executive_summary"]) == {
        "critical_operators",
        "num_critical_operators",
        "avalanche_points",
        "num_avalanche_points",
        "total_outlier_channels",
        "overall_risk_level",
        "risk_score",
    }
    assert {"linear", "softmax", "rms_norm", "silu", "embed", "final_norm", "head"} <= set(
        sections["operator_analysis"]
    )
    assert list(sections["layer_analysis"]) == ["L0-2", "L1-3", "L2-4", "L3-5", "L4-6", "L5-7"]
    assert set(sections["channel_analysis"]) == {"summary", "per_layer"}
    assert len(sections["channel_analysis"]["per_layer"]) == 24
    assert sections["cost"]["forward_pass_equivalents"] == pytest.approx(sum(sections["cost"]["by_stage"].values()))


def test_the_summary_says_what_was_asked_and_found(home: Path, trained: tuple[Path, str]) -> None:
    output, out = trained
    lines = out.splitlines()
    assert lines[0].startswith("model  llama, 8 layers, 0.5 M parameters, float32 on cpu")
    assert lines[1] == "data   text.txt, 8 rows of up to 12 tokens, next token"
    assert lines[3].startswith("Risk: ")
    assert any("where it is fragile (noise 0.05)" in line for line in lines)
    assert any("agrees with injection: Spearman" in line for line in lines)
    assert any(line.startswith("took 0 min ") for line in lines)
    assert lines[-1] == f"Report: {output / 'report.html'}"
    summary, _, commands = str(Report.load(output)).partition("\n\nnext\n")
    assert summary in out
    assert f"noisescope diagnose {FIXTURES / 'llama'} --data {home / 'text.txt'} --preset report" in out, "as typed"
    assert f"noisescope report {output} noisescope-thorough" in out
    assert "noisescope report noisescope-out noisescope-thorough" in commands


def test_names_that_are_words_of_the_command_or_act_on_a_terminal(home: Path, tmp_path: Path) -> None:
    """Neither is a command changed by them, nor the screen."""
    given = ("--data", home / "text.txt", *SMALL, "--level", "channel", "--output", tmp_path / "out")
    shutil.copytree(home / "tiny", tmp_path / "report")
    _, out, _ = run(tmp_path / "report", *given)
    commands = [shlex.split(line.partition("  # ")[0]) for line in out.partition("\nnext\n")[2].splitlines()]
    assert str(tmp_path / "report") in commands[0]
    assert commands[0][commands[0].index("--preset") + 1] == "report"
    assert commands[1][-3:] == ["report", str(tmp_path / "out"), "noisescope-thorough"]
    shutil.copytree(home / "tiny", tmp_path / "\x1b[2J")
    code, out, err = run(tmp_path / "\x1b[2J", *given, "--overwrite")
    assert (code, err) == (0, "")
    assert out.startswith("model  \\x1b[2J, 3 layers")
    assert "\x1b" not in out


def test_a_report_is_not_overwritten_unasked(home: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("report.json").write_text("precious")
    given = (home / "tiny", "--data", home / "text.txt", *SMALL, "--level", "channel", "--output", tmp_path)
    code, out, err = run(*given)
    assert (code, out) == (2, "")
    assert err == f"noisescope: {tmp_path} already holds a report; use another directory (--output) or --overwrite\n"
    assert tmp_path.joinpath("report.json").read_text() == "precious"
    assert run(*given, "--overwrite")[0] == 0
    assert Report.load(tmp_path).sections["config"]["level"] == "channel"


@pytest.mark.parametrize(
    ("level", "filled"),
    [
        ("operator", {"operator_analysis", "map", "metrics"}),
        ("layer", {"layer_analysis", "map", "metrics"}),
        ("channel", {"channel_analysis"}),
    ],
)
def test_a_level_gives_its_own_sections(home: Path, tmp_path: Path, level: str, filled: set[str]) -> None:
    found = diagnose(home, tmp_path / "out", "--level", level)
    levels = {"operator_analysis", "layer_analysis", "channel_analysis", "map", "metrics", "cross_level"}
    assert {name for name in levels if found[name]} == filled
    assert set(found) == KEYS


def test_all_sampled_measures_every_cell_and_layer(home: Path, tmp_path: Path) -> None:
    found = diagnose(home, tmp_path, "--sampled", "all", "--trials", "2")
    assert len(found["map"]["cells"]) == 24
    assert all(cell["measured"] for cell in found["map"]["cells"])
    assert found["map"]["agreement"]["checked"] == 24
    assert {row["how"] for row in found["metrics"]["layers"].values()} == {"measured"}
    assert found["config"]["trials"] == 2


def test_noise_without_a_map(home: Path, tmp_path: Path) -> None:
    rare = ("--error-type", "bit_flip", "--noise-scale", "1e-3", "--operators", "softmax,linear")
    found = diagnose(home, tmp_path, *rare)
    assert found["map"] == {"cells": [], "note": "bit_flip is not random and dense: it has no map"}
    assert found["operator_analysis"]["linear"]["kl"]["value"] >= 0
    assert found["layer_analysis"]["L0-2"]["amplification"] is None


def test_points_that_fail_are_in_the_report_and_in_the_exit_code(home: Path, tmp_path: Path) -> None:
    given = (home / "tiny", "--data", home / "text.txt", *SMALL, "--output", tmp_path)
    code, out, err = run(*given, "--error-type", "bit_flip", "--noise-scale", "0.05")
    assert code == 1
    assert err.count("\n") == 1
    assert "points failed, first " in err
    assert "FAILED: under this noise the model gives non-finite logits" in out
    report = Report.load(tmp_path)
    assert f"{len(report.failures)} points failed, first {next(iter(report.failures))}: " in err
    failed = report.sections["operator_analysis"][next(iter(report.failures))]
    assert "the first value that is not finite is at " in failed["failed"]


def test_layers_and_operators_restrict_what_is_looked_at(home: Path, tmp_path: Path) -> None:
    found = diagnose(home, tmp_path, "--layers", "1-2,head", "--operators", "norm,linear")
    assert {(cell["layer"], cell["operator"]) for cell in found["map"]["cells"]} == {
        (1, "linear"),
        (1, "rms_norm"),
        (2, "linear"),
        (2, "rms_norm"),
        ("head", "linear"),
    }
    assert set(found["operator_analysis"]) == {"linear", "rms_norm", "head"}
    assert list(found["layer_analysis"]) == ["L1-2"]
    assert all(".layers.0." not in path for path in found["channel_analysis"]["per_layer"])


@pytest.mark.parametrize("layer", ["head", "embed", "final_norm"])
def test_what_lies_outside_the_blocks_can_be_asked_for_alone(home: Path, tmp_path: Path, layer: str) -> None:
    found = diagnose(home, tmp_path, "--layers", layer)
    assert set(found["operator_analysis"]) == {layer}
    assert found["layer_analysis"] == {}
    assert found["metrics"]["together"] == {}


def test_layers_with_a_gap(home: Path, tmp_path: Path) -> None:
    """Windows and groups hold only layers that were asked for."""
    found = diagnose(home, tmp_path, "--layers", "0,2", "--level", "layer")
    assert list(found["layer_analysis"]) == ["L0", "L2"]
    assert [row["start_layer"] for row in found["metrics"]["groups"].values()] == [0, 2]


def test_the_usual_window_shrinks_to_a_small_model(home: Path, tmp_path: Path) -> None:
    found = diagnose(home, tmp_path, "--level", "layer", model="two layers")
    assert list(found["layer_analysis"]) == ["L0-1"]


def test_calibration_data_of_its_own(home: Path, tmp_path: Path) -> None:
    more = ("--calibration-data", home / "text.txt", "--calibration-samples", "6")
    found = diagnose(home, tmp_path, "--level", "channel", *more)
    assert {row["samples"] for row in found["channel_analysis"]["per_layer"].values()} == {6}
    assert found["config"]["data"]["rows"] == 4


def test_a_model_in_which_only_channels_are_looked_at_says_what_it_left_out(home: Path, tmp_path: Path) -> None:
    code, out, _ = run(home / "nan", "--data", home / "text.txt", *SMALL, "--level", "channel", "--output", tmp_path)
    assert code == 0
    assert "not finite and left out" in out


# --- flags ------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asks of the library, which then refuses."""
    found: dict[str, Any] = {}

    def refuse(_model: object, data: object, **given: Any) -> None:
        found.update(given, data=data)
        raise InputError("that is all")

    monkeypatch.setattr(noisescope.diagnosis, "diagnose", refuse)
    monkeypatch.setattr("noisescope.measure.sources.require_file", lambda name: name)
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(home: Path, asked: dict[str, Any], tmp_path: Path, preset: str) -> None:
    run(home / "tiny", "--preset", preset, "--output", tmp_path)
    assert (asked["n_samples"], asked["spec"].trials) == {"quick": (50, 1), "standard": (100, 1), "report": (200, 3)}[
        preset
    ]
    run(home / "tiny", "--preset", preset, "--n-samples", "7", "--trials", "2", "--output", tmp_path)
    assert (asked["n_samples"], asked["spec"].trials) == (7, 2)


def test_what_is_not_said_is_the_default_of_the_library(home: Path, asked: dict[str, Any], tmp_path: Path) -> None:
    run(home / "tiny", "--output", tmp_path)
    assert asked["spec"] == DiagnosisSpec()
    assert asked["data"] is None
    assert asked["name"] == "tiny"


def test_every_flag_arrives(home: Path, asked: dict[str, Any], tmp_path: Path) -> None:
    flags = "--level full --noise-scale 0.01 --error-type uniform --layers 0-1 --operators softmax --window-size 2 "
    flags += "--step-size 2 --outlier-threshold 7 --trials 4 --sampled all --curvature --seed 5 --data d.txt "
    flags += "--batch-size 3 --max-length 9 --max-new-tokens 11 --calibration-data c.txt --calibration-samples 8"
    run(home / "tiny", *flags.split(), "--output", tmp_path)
    spec = asked.pop("spec")
    assert spec == DiagnosisSpec(
        level="full",
        noise_scale=0.01,
        error_type="uniform",
        layers=(0, 1),
        operators=("softmax",),
        window_size=2,
        step_size=2,
        outlier_threshold=7.0,
        trials=4,
        sampled="all",
        curvature=True,
        seed=5,
    )
    wanted = {"data": "d.txt", "batch_size": 3, "max_length": 9, "max_new_tokens": 11, "calibration_samples": 8}
    assert {name: asked[name] for name in wanted} == wanted
    assert asked["calibration_data"] == "c.txt"


# --- what cannot be ---------------------------------------------------------------------------------------------


def check_refused(code: int, message: str, *given: str | Path, output: Path) -> None:
    """One line, the right exit code, and nothing written."""
    found, out, err = run(*given, "--output", output)
    assert (found, out) == (code, "")
    assert err.startswith("noisescope: ")
    assert err.count("\n") == 1
    assert message in err
    assert not output.exists()


@pytest.mark.parametrize("flag", ["--data", "--calibration-data"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.jsonl", "absent.jsonl: no such file"),
        ("absent.jsonl:question", "absent.jsonl: no such file"),
        ("table.csv", 'table.csv: cannot read ".csv" files'),
    ],
)
def test_a_missing_file_is_told_of_before_a_model_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, name: str, message: str
) -> None:
    (tmp_path / "table.csv").touch()
    monkeypatch.chdir(tmp_path)
    check_refused(2, message, "./no/such/model", flag, name, output=tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--operators sofmax", 2, '--operators: unknown operator "sofmax", did you mean "softmax"?'),
        (
            "--error-type relative_gausian",
            2,
            '--error-type: unknown error type "relative_gausian", did you mean "relative_gaussian"?',
        ),
        ("--error-type bit_flip --noise-scale 2", 2, "--noise-scale: got 2, expected at most 1, because bit_flip"),
        ("--level operatr", 2, '--level: unknown level "operatr", did you mean "operator"? (operator'),
        ("--preset fast", 2, '--preset: unknown preset "fast" (quick standard report)'),
        ("--sampled some", 2, '--sampled: unknown sampled "some" (checks all)'),
        ("--noise-scale 0", 2, "--noise-scale: got 0.0, expected a number > 0"),
        ("--noise-scale -1", 2, "--noise-scale: got -1.0, expected a number > 0"),
        ("--noise-scale nan", 2, "--noise-scale: got nan, expected a number > 0"),
        ("--noise-scale much", 2, "'--noise-scale'"),
        ("--window-size 0", 2, "--window-size: got 0, expected a whole number of at least 1"),
        ("--window-size 4", 2, "--window-size: got 4, expected at most 3, the layers in a row to choose from"),
        ("--window-size 2 --layers 0,2", 2, "--window-size: got 2, expected at most 1"),
        ("--step-size 0", 2, "--step-size: got 0"),
        ("--outlier-threshold 0.5", 2, "--outlier-threshold: got 0.5, expected a number >= 1"),
        ("--noise-scale 1e300", 2, "--noise-scale: got 1e+300, expected a number > 0, at most 1e+38"),
        ("--seed 99999999999999999999", 2, "--seed: got 99999999999999999999, expected a whole number below 2^63"),
        ("--dtype float17", 2, '--dtype: unknown dtype "float17", did you mean "float16"?'),
        ("--format pfd", 2, '--format: unknown format "pfd", did you mean "pdf"?'),
        ("--level channel --operators softmax", 2, "--operators: is not looked at with --level channel; leave it out"),
        ("--level layer --outlier-threshold 5", 2, "--outlier-threshold: is not looked at with --level layer"),
        ("--trials 0", 2, "--trials: got 0"),
        ("--seed -1", 2, "--seed: got -1"),
        ("--n-samples 1", 2, "--n-samples: got 1, but intervals need at least two samples"),
        ("--n-samples 0", 2, "--n-samples: got 0"),
        ("--batch-size 0", 2, "--batch-size: got 0"),
        ("--max-length 65", 2, "--max-length: got 65, but the model's window is 64 tokens"),
        ("--calibration-samples 0", 2, "--calibration-samples: got 0, expected a whole number of at least 2"),
        ("--calibration-samples 1", 2, "--calibration-samples: got 1, expected a whole number of at least 2"),
        ("--layers nine", 2, '--layers: unknown layer "nine"'),
        ("--layers 99", 3, "--layers: 99 is out of range, the model has 0 to 2"),
        ("--operators gelu", 3, "operators gelu: no such site; `noisescope sites` lists what there is"),
        ("--operators gelu --error-type bit_flip", 3, "operators gelu: no such site"),
        ("--level layer --layers head", 3, "layers head: no block is meant"),
        ("--blocks nowhere", 4, 'blocks: "nowhere" names neither'),
        ("--bogus", 2, "No such option: --bogus"),
    ],
)
def test_questions_that_cannot_be_meant(home: Path, tmp_path: Path, arguments: str, code: int, message: str) -> None:
    given = (home / "tiny", "--data", home / "text.txt", *SMALL, *arguments.split())
    check_refused(code, message, *given, output=tmp_path / "out")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("empty.txt", "empty.txt: empty, expected text"),
        ("empty.jsonl", "empty.jsonl: empty, expected at least one row"),
        ("no field.jsonl", 'no field.jsonl:2: no field "text" or "prompt" (has: wrong)'),
        ("no field.jsonl:wrong", 'no field.jsonl:1: no field "wrong" (has: text)'),
        ("one.jsonl", "one.jsonl: one sample, but intervals need at least two samples"),
        ("short.txt", "short.txt: 3 tokens, fewer than one window of 12"),
        ("table.csv", 'table.csv: cannot read ".csv" files, expected one of .txt .md .jsonl .json .parquet'),
        ("broken.jsonl", "broken.jsonl:2:10: not valid JSON"),
        ("text.parquet", "text.parquet: "),
        ("missing.txt", "missing.txt: no such file"),
        ("tiny", "tiny: "),
    ],
)
@pytest.mark.parametrize("flag", ["--data", "--calibration-data"])
def test_data_that_cannot_be_read(home: Path, tmp_path: Path, flag: str, data: str, message: str) -> None:
    good = () if flag == "--data" else ("--data", home / "text.txt")
    check_refused(2, message, home / "tiny", *good, flag, home / data, *SMALL, output=tmp_path / "out")


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("encoder", 4, "BertModel: expected a causal language model, one that predicts next tokens"),
        ("masked", 4, "BertForMaskedLM: expected a causal language model"),
        ("nan", 4, "the first value that is not finite is at model.layers.1.mlp.up_proj.linear.0.forward"),
        ("few words", 2, "expected 0 to 63, the model's vocabulary; is this the model's tokenizer?"),
        ("missing", 4, "missing"),
        ("text.txt", 4, "text.txt"),
    ],
)
def test_models_that_cannot_be_diagnosed(home: Path, tmp_path: Path, model: str, code: int, message: str) -> None:
    check_refused(code, message, home / model, "--data", home / "text.txt", *SMALL, output=tmp_path / "out")


def test_a_model_without_a_tokenizer_needs_one_for_text(home: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(home / "tiny").save_pretrained(tmp_path / "model")
    given = (tmp_path / "model", "--data", home / "text.txt", *SMALL, "--level", "channel")
    check_refused(2, "text.txt: text needs a tokenizer", *given, output=tmp_path / "out")
    assert run(*given, "--tokenizer", home / "tiny", "--output", tmp_path / "out")[0] == 0


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_output_that_cannot_be_written(home: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    code, out, err = run(
        home / "tiny", "--data", home / "text.txt", *SMALL, "--level", "channel", "--output", tmp_path / place
    )
    assert (code, out) == (5, "")
    assert err.startswith(f"noisescope: cannot write {tmp_path / place}: ")
    assert err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "precious"


def test_output_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert run(tmp_path / "no model", "--output", tmp_path / "file")[0] == 5


# --- bars -------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    with bars() as progress:
        tick = progress("windows", 3)
        tick()
    assert "windows" in shown.getvalue()
    assert "1/3" in shown.getvalue()
    silent = io.StringIO()
    monkeypatch.setattr("sys.stderr", silent)
    with bars() as progress:
        progress("windows", 3)()
    assert not silent.getvalue()
