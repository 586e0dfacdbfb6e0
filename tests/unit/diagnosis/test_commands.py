"""The commands to run next ask the same question, closer; every one of them is taken by the command line."""

import inspect
import shlex
from dataclasses import fields
from typing import Any

import pytest

from noisescope.cli import main
from noisescope.cli.diagnose import diagnose
from noisescope.diagnosis import commands
from noisescope.diagnosis.commands import Commands
from noisescope.models import DEFAULT
from noisescope.specs import DiagnosisSpec

AVALANCHE = [{"layer_range": "L6-8"}]
OTHER: dict[str, Any] = {
    "level": "full",
    "noise_scale": 0.1,
    "layer_noise_scale": 1 / 3,
    "error_type": "uniform",
    "layers": (0, 1, 2, 5, "head"),
    "operators": ("linear", "softmax"),
    "window_size": 2,
    "step_size": 2,
    "avalanche_threshold": 0.2,
    "outlier_threshold": 5.0,
    "trials": 2,
    "sampled": "all",
    "curvature": True,
    "seed": 7,
}


def steps(critical: tuple[str, ...] = (), avalanches: Any = (), **asked: Any) -> list[str]:
    return [step["command"] for step in Commands.naming("a model", "t.txt", **asked).next_steps(critical, avalanches)]


def asked_by(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> dict[str, Any]:
    """What the library is asked when a person pastes it."""
    found: dict[str, Any] = {}

    class Enough(Exception):
        """Nothing is run here."""

    class Loaded:
        model, tokenizer, name = None, None, "model"

    def run(_model: object, data: object, **given: Any) -> None:
        found.update(given, data=data)
        raise Enough

    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("some text")
    monkeypatch.setattr("noisescope.models.load", lambda *_args, **_more: Loaded())
    monkeypatch.setattr("noisescope.diagnosis.diagnose", run)
    monkeypatch.setattr("noisescope.smoothing.smooth", run)
    program, *words = shlex.split(command)
    assert program == "noisescope"
    with pytest.raises(Enough):
        main(words)
    return found


def test_the_more_thorough_command_asks_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert {*OTHER, "target_degradation"} == {field.name for field in fields(DiagnosisSpec)}
    spec, options = DiagnosisSpec(**OTHER), {"max_length": 12, "batch_size": 3, "calibration_samples": 9}
    found = asked_by(steps(spec=spec, n_samples=8, options=options)[0], monkeypatch, tmp_path)
    assert found["spec"] == DiagnosisSpec(**{**OTHER, "trials": 3})
    assert found["data"] == "t.txt"
    assert {name: found[name] for name in options} == options
    assert found["n_samples"] == 200


@pytest.mark.parametrize("level", ["operator", "layer", "channel"])
def test_every_command_is_taken_at_every_level(level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Also where the level does not look at what was asked: such flags would be refused."""
    made = Commands.naming("a model", None, spec=DiagnosisSpec(**{**OTHER, "level": level}))
    closer = [made.closer_to_operator(name) for name in ("gelu", "head")]
    for command in (made.closer_to_channels(), made.closer_to_layers("L6-8"), *closer):
        assert asked_by(command, monkeypatch, tmp_path)["spec"].seed == 7


def test_smoothing_takes_what_the_diagnosis_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    options = {"max_length": 12, "batch_size": 3, "calibration_samples": 9, "dtype": "bfloat16", "max_new_tokens": 5}
    found = asked_by(Commands.naming("a model", "t.txt", options=options).smoothing(), monkeypatch, tmp_path)
    assert (found["data"], found["max_length"], found["batch_size"]) == ("t.txt", 12, 3)
    assert Commands.naming(DEFAULT.name, None).smoothing() == "noisescope smooth --output noisescope-smoothed"
    assert Commands(None).smoothing() == ""


def test_what_was_left_as_it_is_is_not_repeated() -> None:
    assert steps() == [
        "noisescope diagnose 'a model' --data t.txt --preset report --output noisescope-thorough",
        "noisescope report noisescope-out noisescope-thorough",
        "noisescope plan migration noisescope-out",
        "noisescope plan fault-tests noisescope-out",
    ]


def test_closer() -> None:
    spec = DiagnosisSpec(level="layer", noise_scale=0.1)
    first, second, *_ = steps(("head", "softmax"), AVALANCHE, spec=spec, n_samples=8)
    where, noise = "noisescope diagnose 'a model' --data t.txt", "--noise-scale 0.1"
    layers = "--layers 6-8 --sampled all --preset report --output noisescope-layers-6-8"
    assert first == f"{where} --level operator {noise} {layers}"
    operator = "--operators softmax --sampled all --n-samples 8 --output noisescope-softmax"
    assert second == f"{where} --level layer {noise} {operator}"


@pytest.mark.parametrize(
    ("n_samples", "trials", "why"),
    [
        (50, 1, "narrower intervals: up to 4 times the data, 3 draws"),
        (8, 1, "narrower intervals: up to 25 times the data, 3 draws"),
        (60, 3, "narrower intervals: up to 3.3 times the data"),
        (500, 1, "narrower intervals: 3 draws"),
        (200, 3, None),
        (300, 5, None),
    ],
)
def test_how_much_more_is_computed(n_samples: int, trials: int, why: str | None) -> None:
    found = Commands("x", spec=DiagnosisSpec(trials=trials), n_samples=n_samples).next_steps((), ())
    assert [step["why"] for step in found if "diagnose" in step["command"]] == ([why] if why else [])


def test_more_than_the_preset_is_kept() -> None:
    assert "--n-samples 500 --preset report" in steps(n_samples=500)[0]


def test_names_as_a_person_types_them() -> None:
    """Also those that are words of the command."""
    made = Commands.naming("report", "diagnose", output="my out", program="python -m noisescope")
    assert [step["command"] for step in made.next_steps((), ())] == [
        "python -m noisescope diagnose report --data diagnose --preset report --output noisescope-thorough",
        "python -m noisescope report 'my out' noisescope-thorough",
        "python -m noisescope plan migration 'my out'",
        "python -m noisescope plan fault-tests 'my out'",
    ]


def test_channels_alone_are_nothing_to_plan_with() -> None:
    assert not any(" plan " in command for command in steps(spec=DiagnosisSpec(level="channel")))


def test_the_default_model_needs_no_name_and_some_have_none() -> None:
    assert Commands.naming(DEFAULT.name, None).closer_to_channels().startswith("noisescope diagnose --level channel ")
    for nothing in (Commands.naming(None, None), Commands.naming("a\nb", None), Commands.naming("a", "\x1b[2J")):
        assert (nothing.next_steps(("softmax",), AVALANCHE), nothing.closer_to_channels()) == ([], "")


def test_the_defaults_are_those_of_the_command_line() -> None:
    signature = inspect.signature(diagnose).parameters
    taken = {name: value for name, value in commands._LEFT.items() if name not in ("n_samples", "trials")}
    assert {name: signature[name].default for name in taken if name in signature} == {
        name: value for name, value in taken.items() if name != "target_degradation"
    }
