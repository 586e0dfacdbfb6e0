"""P12: a run is only gone on with if the same is asked: the same model, data, dtype, tokenizer, attention, versions."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import FIXTURES, Asking
from safetensors.torch import load_file, save_file

import noisescope as ns
from noisescope.cli import main
from noisescope.diagnosis import integrated, stages
from noisescope.diagnosis import question as asked_of
from noisescope.errors import InputError
from noisescope.measure.texts import built_in_text

# --- as a person would: through the command line ----------------------------------------------------------------


def copy_of(home: Path) -> Path:
    """The fixture in a directory of the same name."""
    return Path(shutil.copytree(FIXTURES / "llama", home / "copies" / "llama"))


def a_weight_bit(home: Path) -> dict[str, Any]:
    model = copy_of(home)
    weights = load_file(model / "model.safetensors")
    weight = next(weight for name, weight in weights.items() if "layers.3" in name)
    weight.view(torch.int32).view(-1)[5] ^= 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return {"model": model}


def edited(home: Path, name: str, **changes: Any) -> dict[str, Any]:
    model = copy_of(home)
    found = json.loads((model / name).read_text())
    (model / name).write_text(json.dumps({**found, **changes}))
    return {"model": model}


def another_epsilon(home: Path) -> dict[str, Any]:
    return edited(home, "config.json", rms_norm_eps=1e-5)


def a_merge_less(home: Path) -> dict[str, Any]:
    """The tokens of this text stay the same, the tokenizer does not."""
    rules = json.loads((FIXTURES / "llama" / "tokenizer.json").read_text())
    return edited(home, "tokenizer.json", normalizer=rules.get("normalizer") or {"type": "NFC"})


def other_text(home: Path) -> dict[str, Any]:
    (home / "other.txt").write_text(built_in_text()[2000:4000])
    return {"more": ("--data", home / "other.txt")}


FLAGS = {
    "dtype": "--dtype bfloat16",
    "attention": "--attn eager",
    "n_samples": "--n-samples 5",
    "max_length": "--max-length 10",
    "batch_size": "--batch-size 3",
    "seed": "--seed 1",
    "max_new_tokens": "--max-new-tokens 9",
    "noise_scale": "--noise-scale 0.1",
    "layer_noise_scale": "--layer-noise-scale 0.1",
    "error_type": "--error-type uniform",
    "layers": "--layers 5-7",
    "operators": "--operators linear",
    "window_size": "--window-size 1",
    "step_size": "--step-size 2",
    "trials": "--trials 2",
    "sampled": "--sampled all",
    "curvature": "--curvature",
    "level": "--level full",
}
"""what is named -> the flag that changes it"""


def check_refused(asking: Asking, output: Path, name: str, *more: object, model: Path = FIXTURES / "llama") -> None:
    """Exit 2 and one line that names what differs; the journal and the report stay as they are."""
    shutil.copytree(asking.undisturbed, output)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    ran = asking.run(output, "--resume", *more, model=model)
    assert (ran.code, ran.out) == (2, ""), ran
    assert ran.err.startswith(f"noisescope: {output / 'journal'}: begun with another {name} ("), ran.err
    assert ran.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


@pytest.mark.parametrize("name", FLAGS)
def test_another_flag_is_refused(asking, tmp_path, name):
    check_refused(asking, tmp_path / "out", name, *FLAGS[name].split())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model", a_weight_bit),
        ("model's configuration", another_epsilon),
        ("tokenizer", a_merge_less),
        ("data", other_text),
    ],
)
def test_another_file_is_refused(asking, tmp_path, name, change: Callable[[Path], dict[str, Any]]):
    given = change(tmp_path)
    check_refused(asking, tmp_path / "out", name, *given.pop("more", ()), **given)


@pytest.mark.parametrize("name", ["noisescope", "torch", "python", "transformers", "threads"])
def test_another_environment_is_refused(asking, tmp_path, monkeypatch, name):
    _ = asking.undisturbed
    another_environment(monkeypatch, name)
    check_refused(asking, tmp_path / "out", name)


def test_how_to_ask_the_same_is_said(asking, tmp_path, monkeypatch):
    """Also of what no flag sets."""
    shutil.copytree(asking.undisturbed, tmp_path / "out")
    anew = "use another directory, or begin anew (--overwrite, in Python anew=True)\n"
    assert asking.run(tmp_path / "out", "--resume", "--trials", "2").err.endswith(f"; ask the same, {anew}")
    another_environment(monkeypatch, "threads")
    assert asking.run(tmp_path / "out", "--resume").err.endswith(f"; set OMP_NUM_THREADS to what it was, {anew}")


def another_environment(monkeypatch, name):
    if name == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    else:
        real = asked_of.environment
        monkeypatch.setattr(asked_of, "environment", lambda model: {**real(model), name: "0.0.1"})


def test_the_same_question_is_gone_on_with(asking, tmp_path):
    """Also from another place on the disk, with flags in another order, and said in other words."""
    shutil.copytree(asking.undisturbed, tmp_path / "out")
    shutil.copyfile(asking.text, tmp_path / "text.txt")
    words = ("--operators", " softmax", "--layers", "6,7", "--noise-scale", "5e-2", "--data", tmp_path / "text.txt")
    assert asking.run(tmp_path / "out", "--resume", *words, model=copy_of(tmp_path)).code == 0
    asking.check_finished(tmp_path / "out")


# --- every field ------------------------------------------------------------------------------------------------

OTHER = {
    "level": "full",
    "noise_scale": 0.1,
    "layer_noise_scale": 0.1,
    "error_type": "uniform",
    "layers": (1,),
    "operators": ("linear",),
    "window_size": 2,
    "step_size": 2,
    "avalanche_threshold": 0.2,
    "outlier_threshold": 5.0,
    "target_degradation": 0.2,
    "trials": 2,
    "sampled": "all",
    "curvature": True,
    "seed": 1,
}
DATA = tuple([1, 2, 3, 4 + at, 5] for at in range(4))


class Begun(BaseException):
    """Enough: the journal has let the question pass."""


def begin(model: Any, path: Path, **given: Any) -> None:
    """Asks in Python, up to where the run would begin."""
    with pytest.MonkeyPatch.context() as patch, ns.Journal(path) as journal:
        patch.setattr(integrated, "sections", lambda *_args, **_more: (_ for _ in ()).throw(Begun))
        journal_keeps = journal.begin

        def begin_and_keep(question: Any) -> None:
            journal_keeps(question)
            if not len(journal):  # a run that has finished nothing leaves no journal
                journal.keep("something", 1)

        patch.setattr(journal, "begin", begin_and_keep)
        with pytest.raises(Begun):
            ns.diagnose(model, **{"data": ns.open_data([{"input_ids": torch.tensor(DATA)}]), **given}, journal=journal)


def check_spec_field(model: Any, path: Path, name: str) -> None:
    spec = ns.DiagnosisSpec(level="layer", operators=("softmax",))
    begin(model, path, spec=spec)
    begin(model, path, spec=spec)
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"begun with another {name} "):
        begin(model, path, spec=replace(spec, **{name: OTHER[name]}))
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", [field.name for field in fields(ns.DiagnosisSpec)])
def test_another_spec_is_refused(tiny, tmp_path, name):
    check_spec_field(tiny, tmp_path / "journal", name)


@pytest.mark.parametrize(("more", "name"), [(1, "calibration_samples"), (0, "calibration data")])
def test_other_calibration_data_is_refused(tiny, tmp_path, more, name):
    def calibrated(rows: Any) -> dict[str, Any]:
        return {"calibration_data": ns.open_data([{"input_ids": torch.tensor(rows)}])}

    begin(tiny, tmp_path / "journal", **calibrated(DATA[:3]))
    with pytest.raises(InputError, match=f"begun with another {name} "):
        begin(tiny, tmp_path / "journal", **calibrated(DATA if more else DATA[1:]))


# --- able to fail -----------------------------------------------------------------------------------------------


def leave_out(monkeypatch, *names):
    """The question without some of what it depends on."""
    real = integrated.question
    monkeypatch.setattr(
        integrated,
        "question",
        lambda *args, **more: {name: part for name, part in real(*args, **more).items() if name not in names},
    )


@pytest.mark.parametrize("name", ["model", "tokenizer", "data", "noise_scale", "torch"])
def test_a_question_that_lacks_something_is_caught(tmp_path, monkeypatch, name):
    leave_out(monkeypatch, name)
    forgetful = Asking(tmp_path)
    _ = forgetful.undisturbed
    given: dict[str, Any] = {}
    if name == "torch":
        another_environment(monkeypatch, name)
    elif name in FLAGS:
        given = {"more": FLAGS[name].split()}
    else:
        given = {"model": a_weight_bit, "tokenizer": a_merge_less, "data": other_text}[name](tmp_path)
    more = given.pop("more", ())
    with pytest.raises(AssertionError):
        check_refused(forgetful, tmp_path / "out", name, *more, **given)


def test_a_spec_that_leaves_out_a_field_is_caught(tiny, tmp_path, monkeypatch):
    leave_out(monkeypatch, "target_degradation")
    with pytest.raises(pytest.fail.Exception):
        check_spec_field(tiny, tmp_path / "journal", "target_degradation")


def test_a_model_that_computes_something_else_is_refused(asking, tmp_path, monkeypatch):
    """What no fingerprint shows, such as another processor: the clean run is compared once it has to be run again."""
    lines = asking.undisturbed.joinpath("journal").read_bytes().splitlines(keepends=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "journal").write_bytes(b"".join(lines[:3]))
    real = stages.Bench._forward
    monkeypatch.setattr(stages.Bench, "_forward", lambda self, batch, start=0: real(self, batch, start) * 1.0001)
    ran = asking.run(tmp_path / "out", "--resume")
    assert ran.code == 4
    assert "does not compute what it did in the run to go on with" in ran.err


# --- traces: what is compared, and what must be the same --------------------------------------------------------


def traced(home: Path, name: str, *more: Any, model: Path = FIXTURES / "llama") -> str:
    file = str(home / f"{name}.trace")
    small = ("--n-samples", "2", "--max-length", "12", "--no-floor")
    assert main(["trace", str(model), "-o", file, *small, *map(str, more)]) == 0
    return file


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace of the fixture, without a floor."""
    return traced(tmp_path_factory.mktemp("plain"), "one")


@pytest.fixture(scope="module")
def with_floor(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("floor") / "one.trace")
    assert main(["trace", str(FIXTURES / "llama"), "-o", file, "--n-samples", "2", "--max-length", "12"]) == 0
    return file


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("checkpoint", lambda home: traced(home, "other", model=a_weight_bit(home)["model"])),
        ("tokens", lambda home: traced(home, "other", "--max-length", "10")),
        ("tokens", lambda home: traced(home, "other", *other_text(home)["more"])),
        ("layers", lambda home: traced(home, "other", model=shallower(home))),
        ("seed", lambda home: traced(home, "other", "--seed", "1", "--data", whole_text(home))),
    ],
)
def test_traces_of_another_question_are_refused(
    field: str, other: Callable[[Path], str], plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = traced(tmp_path, "one", "--data", whole_text(tmp_path)) if field == "seed" else plain
    two = other(tmp_path)
    capsys.readouterr()
    assert main(["compare", one, two, "--output", str(tmp_path / "out")]) == 2
    assert f"different {field}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def shallower(home: Path) -> Path:
    """The fixture without its last blocks; the weights that it has are the same."""
    model = copy_of(home)
    weights = load_file(model / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not any(f"layers.{at}." in name for at in (6, 7))}
    save_file(kept, model / "model.safetensors", metadata={"format": "pt"})
    found = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**found, "num_hidden_layers": 6, "layer_types": None}))
    return model


def whole_text(home: Path) -> Path:
    """So short that every seed takes all of it."""
    (home / "text.jsonl").write_text(
        "".join(json.dumps({"text": built_in_text()[at : at + 60]}) + "\n" for at in (0, 90))
    )
    return home / "text.jsonl"


@pytest.mark.parametrize("flags", [("--dtype", "bfloat16"), ("--attn", "eager"), ("--emulate", "reduction_order")])
def test_what_is_being_compared_is_not_refused(
    flags: tuple[str, str], with_floor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = traced(tmp_path, "two", *flags)
    assert main(["compare", with_floor, two, "--output", str(tmp_path / "out")]) == 0
    assert "same model, same tokens; differs: " in capsys.readouterr().out


def test_the_mutant_that_compares_anything_is_caught(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noisescope.comparing.comparing.refuse", lambda *_given, **_more: None)
    two = traced(tmp_path, "two", model=a_weight_bit(tmp_path)["model"])
    assert main(["compare", plain, two, "--output", str(tmp_path / "out")]) != 2
