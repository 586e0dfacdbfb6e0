"""P24: no name from a model, its data or a specification leaves the output directory, or decides what a file is called.

Runs with hostile names make the same files as a run with harmless ones, and nothing else below the same parent changes.
"""

import contextlib
import io
import json
import os
from pathlib import Path

import pytest
import torch
from malformed import snapshot
from malformed_kinds import SMALL, TEXT, model_files
from torch import nn

import noisescope as ns
from families import build, tokens
from noisescope import store
from noisescope.cli import main
from noisescope.report import Report

NAMES = (
    "..",
    "...",
    "../../x",
    "../../../../tmp/x",
    "/tmp/x",
    "a/b",
    "~",
    "-rf",
    "$(touch x)",
    "`touch x`",
    "a;touch x",
    "con",
    "NUL",
    "C:\\x",
    "..\\..\\x",
    "report.json/../../x",
    "%2e%2e%2fx",
    "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}\N{FULLWIDTH SOLIDUS}x",
    "a\nb",
    "\x1b[2J",
    "\udce9",
    "x" * 200,
    " ",
    ".hidden",
)


def made(before: dict[str, object], home: Path) -> set[str]:
    """What appeared; what was there must be as it was."""
    after = snapshot(home)
    assert {name: after.get(name) for name in before} == before, "something that was there changed"
    return set(after) - set(before)


def check_inside(found: set[str], expected: set[str]) -> None:
    assert found == expected, f"made {sorted(found ^ expected)}"


def of_the_library(name: str, home: Path) -> set[str]:
    """A diagnosis whose report, data and a module are called that."""
    home.mkdir(parents=True)
    model = build("llama")
    inner = name.replace(".", "_") or "x"  # torch itself refuses a dot in the name of a module
    block = model.model.layers[0].mlp
    block.add_module(inner, nn.Linear(32, 32, bias=False).eval())
    block.register_forward_hook(lambda module, _given, out: out + 0 * getattr(module, inner)(out))
    data = ns.open_data([tokens(rows=4)])
    before = snapshot(home)
    spec = ns.DiagnosisSpec(operators=("linear",), level="full")
    report = ns.diagnose(model, data, spec=spec, name=name)
    report.save(home / "below" / "out")
    assert Report.load(home / "below" / "out").sections["config"]["model"] == name
    return made(before, home)


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    found = of_the_library("a model", tmp_path_factory.mktemp("harmless") / "home")
    assert {str(Path("below", "out", "report.json"))} <= found
    assert all(name.startswith("below") for name in found)
    return found


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_models_and_modules(name: str, tmp_path: Path, harmless: set[str]) -> None:
    check_inside(of_the_library(name, tmp_path / "home"), harmless)


def of_the_command(name: str, home: Path) -> set[str]:
    """A diagnosis of a directory and a data file that are called that."""
    place = home / "models" / name
    place.mkdir(parents=True)
    for file, content in model_files().items():
        (place / file).write_bytes(content)
    data = home / "models" / f"{name}.md"
    data.write_bytes(TEXT.read_bytes())
    before = snapshot(home)
    small = (*SMALL, "--level", "channel", "--output", str(home / "out"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(["diagnose", str(place), "--data", str(data), *small]) == 0, err.getvalue()
    return made(before, home)


@pytest.fixture(scope="module")
def of_a_harmless_command(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    found = of_the_command("a model", tmp_path_factory.mktemp("harmless") / "home")
    assert {str(Path("out", "report.json"))} <= found
    assert all(name.startswith("out") for name in found)
    return found


ON_DISK = [name for name in NAMES if os.sep not in name and name.strip(". ") and name != "\udce9"]
"""tokenizers cannot open a directory whose name is no text"""


@pytest.mark.parametrize("name", ON_DISK, ids=ascii)
def test_names_of_directories_and_files(name: str, tmp_path: Path, of_a_harmless_command: set[str]) -> None:
    check_inside(of_the_command(name, tmp_path / "home"), of_a_harmless_command)


@pytest.mark.parametrize("name", ["../other.safetensors", "/tmp/other.safetensors", "a/../../other.safetensors", ".."])
def test_names_in_an_index(name: str, tmp_path: Path) -> None:
    """A weight file outside the model's directory is not even read."""
    place = tmp_path / "model"
    place.mkdir()
    for file, content in model_files().items():
        (tmp_path / "other.safetensors" if file == "model.safetensors" else place / file).write_bytes(content)
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    before = snapshot(tmp_path)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(["diagnose", str(place), "--data", str(TEXT), *SMALL, "--output", str(tmp_path / "out")]) == 4
    assert "expected a .safetensors file beside the index" in err.getvalue()
    assert made(before, tmp_path) == set()


def test_values_that_are_put_on_disk_have_numbers_for_names(tmp_path: Path) -> None:
    spill = store.Spill(str(tmp_path))
    paths = [Path(spill.write(b"x")) for _ in range(3)]
    assert {path.parent for path in paths} == {spill.path}
    assert [path.name for path in paths] == ["0", "1", "2"]
    assert spill.path.parent == tmp_path
    spill.close()


@pytest.mark.parametrize("name", ["..x", "...", "x" * 250, "\udce9", "$(touch x)"], ids=ascii)
def test_a_file_is_written_beside_itself_first(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Path] = []
    real = os.replace

    def watched(source: Path, target: Path) -> None:
        moved.append(Path(source))
        real(source, target)

    monkeypatch.setattr(os, "replace", watched)
    store.atomic_write(tmp_path / name, b"x")
    assert [place.parent for place in moved] == [tmp_path]
    assert os.listdir(tmp_path) == [name]


# --- able to fail -----------------------------------------------------------------------------------------------


def saved_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(self: Report, directory: Path) -> Path:
        real(self, directory)
        place = Path(directory) / f"{self.sections['config']['model']}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x")
        return place

    real = Report.save
    monkeypatch.setattr(Report, "save", mutant)


def a_file_for_each_site(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(self: Report, directory: Path) -> Path:
        home = real(self, directory).parent
        for site in self.sections["map"]["channels"]:
            place = home / f"{site}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x")
        return home

    real = Report.save
    monkeypatch.setattr(Report, "save", mutant)


@pytest.mark.parametrize("mutant", [saved_by_its_model, a_file_for_each_site])
def test_the_mutants_are_caught(mutant, tmp_path: Path, harmless: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="made "):
        check_inside(of_the_library("../../x", tmp_path / "home"), harmless)


def test_a_changed_file_is_caught(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    before = snapshot(tmp_path)
    (tmp_path / "precious").write_text("new")
    with pytest.raises(AssertionError, match="something that was there changed"):
        made(before, tmp_path)
