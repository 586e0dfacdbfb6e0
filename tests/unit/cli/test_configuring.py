"""`--config`: every flag is a key, flags win, and everything wrong with a file is said at once with its line."""

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import typer

import noisescope.diagnosis
import noisescope.models
from noisescope.cli import app, main
from noisescope.cli.configuring import ONLY_FLAGS, SECTIONS
from noisescope.cli.diagnose import diagnose
from noisescope.errors import NothingMatched
from noisescope.specs import DiagnosisSpec


class Enough(Exception):
    """Nothing is run here."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the command asks of the library; the working directory is an empty one."""
    found: dict[str, Any] = {}

    class Loaded:
        model, tokenizer, name = None, None, "model"

    def load(name: object, **given: Any) -> Loaded:
        found.update(given, model=name)
        return Loaded()

    def run(_model: object, data: object, **given: Any) -> None:
        found.update(given | found, data=data)
        raise Enough

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(noisescope.models, "load", load)
    monkeypatch.setattr(noisescope.diagnosis, "diagnose", run)
    monkeypatch.setattr("noisescope.measure.sources.require_file", lambda name: name)
    return found


def run(text: str, *flags: str) -> None:
    Path("sweep.yaml").write_text(text)
    with pytest.raises(Enough):
        main(["diagnose", "--config", "sweep.yaml", *flags])


def refused(capsys: pytest.CaptureFixture[str], text: str, *flags: str, code: int = 2) -> list[str]:
    """The lines that a person sees, without what is the same in all."""
    Path("sweep.yaml").write_text(text)
    assert main(["diagnose", "--config", "sweep.yaml", *flags]) == code
    out, err = capsys.readouterr()
    assert not out
    assert os.listdir() == ["sweep.yaml"], "nothing is written"
    lines = err.splitlines()
    assert all(line.startswith("noisescope: sweep.yaml") for line in lines)
    return [line.removeprefix("noisescope: sweep.yaml") for line in lines]


# --- what arrives -----------------------------------------------------------------------------------------------


DOCUMENTED = """\
model: path/to/model
data: texts.jsonl
operator:
  noise_scale: 1e-3
  operators: softmax,norm
layer: {window_size: 4, step_size: 2, noise_scale: 0.02}
channel:
  calibration_samples: 12
  outlier_threshold: 7
level: full
output: out
engine: local
"""


def test_the_documented_keys(asked: dict[str, Any]) -> None:
    run(DOCUMENTED)
    assert asked["spec"] == DiagnosisSpec(
        noise_scale=0.001,
        layer_noise_scale=0.02,
        operators=("softmax", "layer_norm", "rms_norm"),
        window_size=4,
        step_size=2,
        outlier_threshold=7.0,
    )
    assert (asked["model"], asked["data"], asked["calibration_samples"]) == ("path/to/model", "texts.jsonl", 12)


def test_the_file_in_the_documentation(asked: dict[str, Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "diagnose.md").read_text()
    run(page.split("```yaml\n")[1].split("```")[0])
    assert asked["spec"].layer_noise_scale == 0.02


def test_every_flag_is_a_key(asked: dict[str, Any]) -> None:
    run(
        """
        n-samples: 7
        batch_size: 3
        max_length: 9
        max_new_tokens: 11
        preset: report
        trials: 2
        seed: 5
        sampled: all
        curvature: yes
        error_type: uniform
        layers: [0-1, 3, head]
        dtype: float32
        device: cpu
        attn: eager
        tokenizer: ~/words
        blocks: model.layers
        calibration_data: c.txt
        overwrite: off
        """
    )
    spec: DiagnosisSpec = asked["spec"]
    assert (spec.trials, spec.seed, spec.sampled, spec.curvature, spec.error_type) == (2, 5, "all", True, "uniform")
    assert spec.layers == (0, 1, 3, "head")
    wanted = {"n_samples": 7, "batch_size": 3, "max_length": 9, "max_new_tokens": 11, "calibration_data": "c.txt"}
    wanted |= {"dtype": "float32", "device": "cpu", "attn": "eager", "tokenizer": "~/words", "blocks": "model.layers"}
    assert {name: asked[name] for name in wanted} == wanted


def test_keys_are_the_parameters_of_the_command(capsys: pytest.CaptureFixture[str], asked: dict[str, Any]) -> None:
    """A new flag is a key without anyone having to remember it."""
    parameters = set(inspect.signature(diagnose).parameters) - {"context"}
    for name in sorted(parameters - set(ONLY_FLAGS)):
        assert refused(capsys, f"{name}: {{a: 1}}") == [f":1 {name}.a: {name} has no keys under it, expected one value"]
    assert set(ONLY_FLAGS) == {"config", "trust_remote_code"} <= parameters
    assert set(SECTIONS.values()) - parameters <= {"save_activations"}
    command = typer.main.get_command(app).commands["diagnose"]  # type: ignore[attr-defined]
    assert {param.name for param in command.params} - {"help"} == parameters


def test_flags_win(asked: dict[str, Any]) -> None:
    run("noise_scale: 0.1\nmodel: a\nlevel: layer\ncurvature: yes", "b", "--noise-scale", "0.2", "--level", "operator")
    assert (asked["model"], asked["spec"].noise_scale, asked["spec"].level) == ("b", 0.2, "operator")
    assert asked["spec"].curvature


@pytest.mark.parametrize("text", ["", "# nothing\n", "layer: {}\nlayers:\nattn: null\ndata: ~\n"])
def test_nothing_set_is_the_default(asked: dict[str, Any], text: str) -> None:
    run(text)
    assert asked["spec"] == DiagnosisSpec()
    assert (asked["model"], asked["data"], asked["attn"]) == (None, None, None)


@pytest.mark.parametrize(
    ("written", "number"), [("1e-3", 0.001), ("5E-2", 0.05), (".5", 0.5), ("+1", 1.0), ("1.", 1.0), ('"0.1"', 0.1)]
)
def test_numbers_as_people_write_them(asked: dict[str, Any], written: str, number: float) -> None:
    run(f"noise_scale: {written}")
    assert asked["spec"].noise_scale == number


@pytest.mark.parametrize("layers", ["9-11", "'9-11'", "[9, 10, 11]", "[9-10, '11']", "9,10 11", "\n - 9\n - 10-11"])
def test_layers_as_people_write_them(asked: dict[str, Any], layers: str) -> None:
    run(f"layers: {layers}")
    assert asked["spec"].layers == (9, 10, 11)


# --- what cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layer:\n  window_size: three", ':2 layer.window_size: got "three", expected a whole number of at least 1'),
        ("window_size: 0", ":1 window_size: got 0, expected a whole number of at least 1"),
        ("window_size: 1.0", ':1 window_size: got "1.0", expected a whole number'),
        ("window_size: 0x10", ':1 window_size: got "0x10", expected a whole number'),
        ("window_size: " + "9" * 9999, ':1 window_size: got "999'),
        ("noise_scale: -1", ":1 noise_scale: got -1.0, expected a number > 0"),
        ("noise_scale: .inf", ':1 noise_scale: got ".inf", expected a number > 0'),
        ("noise_scale: 1e999", ":1 noise_scale: got inf, expected a number > 0"),
        ("noise_scale:", ':1 noise_scale: got "", expected a number > 0'),
        ("noise_scale: [0.1, 0.2]", ":1 noise_scale: got a list of 2, expected a single value"),
        ("noise_scale: {a: 1}", ":1 noise_scale.a: noise_scale has no keys under it, expected one value"),
        ("curvature: 1", ':1 curvature: got "1", expected true or false'),
        ("level: ful", ':1 level: unknown level "ful", did you mean "full"? (operator layer channel full)'),
        ("preset: fast", ':1 preset: unknown preset "fast" (quick standard report)'),
        ("operators: sofmax", ':1 operators: unknown operator "sofmax", did you mean "softmax"?'),
        ("operators: [norm, sofmax]", ':1 operators: unknown operator "sofmax", did you mean "softmax"?'),
        ("layers: [1, haed]", ':1 layers: unknown layer "haed", did you mean "head"?'),
        ("error_type: uniformm", ':1 error_type: unknown error type "uniformm", did you mean "uniform"?'),
        ("dtype: float17", ':1 dtype: unknown dtype "float17", did you mean "float16"?'),
        ("engine: ray", ':1 engine: got "ray", which is not available yet, expected local'),
        ("noise_scal: 1", ':1 noise_scal: unknown key, did you mean "noise_scale"?'),
        ("noise: {scale: 1}", ':1 noise.scale: unknown key, did you mean "noise_scale"?'),
        ("layer: {window: 1}", ':1 layer.window: unknown key, did you mean "layer.window_size"?'),
        ("layer: {qqqqqq: 1}", ":1 layer.qqqqqq: unknown key (layer.window_size layer.step_size layer.noise_scale)"),
        ("layer: 3", ":1 layer: expected keys under it (window_size step_size noise_scale)"),
        ("qqqqqq: 3", ":1 qqqqqq: unknown key (model data level "),
        ("config: b.yaml", ":1 config: a configuration cannot name another"),
        ("trust-remote-code: yes", ":1 trust_remote_code: a file cannot allow code to run; pass --trust-remote-code"),
        ("context: 1", ":1 context: unknown key"),
        ("help: yes", ":1 help: unknown key"),
        (
            "operators: norm\noperator: {operators: [linear]}",
            ":2 operator.operators: means the same as operators in line 1",
        ),
        ('output: "a\\0b"', ':1 output: got "a\\x00b", expected text on one line'),
        ('data: "\\uD800"', ':1 data: got "\\ud800", expected text on one line'),
        ("model: |\n  a\n  b\n", ':1 model: got "a\\nb\\n", expected text on one line'),
        ('model: ""', ':1 model: got "", expected text'),
    ],
)
def test_values_that_cannot_be_meant(capsys: pytest.CaptureFixture[str], asked: Any, text: str, expected: str) -> None:
    (line,) = refused(capsys, text)
    assert line.startswith(expected)
    assert len(line) < 400


def test_everything_wrong_is_said_at_once_in_the_order_of_lines(capsys: pytest.CaptureFixture[str], asked: Any) -> None:
    text = "level: x\nsize: 3\nseed: 1\nseed: 2\nlayer:\n  window_size: 0\n  noise_scale: &a 2\ntrials: [\n"
    found = refused(capsys, text)
    assert [line.split(" ")[0] for line in found] == [":1", ":2", ":4", ":6", ":7", ":9:1:"]


def test_no_more_than_a_person_wants_to_read(capsys: pytest.CaptureFixture[str], asked: Any) -> None:
    found = refused(capsys, "".join(f"key{number}: 1\n" for number in range(1000)))
    assert len(found) == 21
    assert found[-1] == ": and 980 more"


def test_the_file_must_be_right_also_where_a_flag_wins(capsys: pytest.CaptureFixture[str], asked: Any) -> None:
    assert refused(capsys, "level: x", "--level", "full")


def test_an_error_that_shows_later_names_the_line_too(
    capsys: pytest.CaptureFixture[str], asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_far(_model: object, _data: object, **given: Any) -> None:
        raise NothingMatched("layers: 99 is out of range, the model has 0 to 2")

    monkeypatch.setattr(noisescope.diagnosis, "diagnose", too_far)
    text = "model: ./a/model\nlevel: layer\nlayers: 99"
    assert refused(capsys, text, code=3) == [":3 layers: 99 is out of range, the model has 0 to 2"]
    assert main(["diagnose", "--config", "sweep.yaml", "--layers", "98"]) == 3
    assert capsys.readouterr().err == "noisescope: --layers: 99 is out of range, the model has 0 to 2\n"


@pytest.mark.parametrize("place", ["missing.yaml", "."])
def test_a_file_that_is_none(capsys: pytest.CaptureFixture[str], asked: Any, place: str) -> None:
    assert main(["diagnose", "--config", place]) == 2
    assert capsys.readouterr().err.startswith(f"noisescope: {place}: ")


def test_a_file_that_is_not_there_is_told_of_with_the_line_that_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, "model: ./no/such/model\ndata: absent.jsonl\ncalibration_data: none.txt\n") == [
        ":2 data: absent.jsonl: no such file",
        ":3 calibration_data: none.txt: no such file",
    ]
