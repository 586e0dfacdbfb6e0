"""P22: models are loaded from safetensors or GGUF, code of a model runs only when asked for, and the report says so.

Every kind of bad checkpoint is in `tests/unit/models`; here is what a person can rely on, from command to report.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
from malformed_kinds import SMALL, TEXT, model_files
from transformers import AutoModelForCausalLM, dynamic_module_utils

import noisescope
from noisescope.cli import main
from noisescope.diagnosis.question import environment

SRC = Path(noisescope.__file__).parent
OWN = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
CODE = """\
from transformers import LlamaConfig, LlamaForCausalLM
class Config(LlamaConfig):
    model_type = "mine"
class Model(LlamaForCausalLM):
    config_class = Config
"""


class NoStdin(io.StringIO):
    """Nobody sits there."""

    def readline(self, *_given: object) -> str:
        raise AssertionError("asked on stdin")

    read = readline


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that brings its own code."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdin", NoStdin())
    place = tmp_path / "mine"
    place.mkdir()
    for name, content in model_files().items():
        (place / name).write_bytes(content)
    (place / "config.json").write_text(json.dumps(json.loads(model_files()["config.json"]) | OWN))
    (place / "mine.py").write_text(CODE)
    return place


def diagnose(model: Path, output: Path, *more: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        small = (*SMALL, "--level", "channel", "--output", str(output))
        code = main(["diagnose", str(model), "--data", str(TEXT), *small, *more])
    return code, err.getvalue()


def check_told(report: Path, *, remote: bool) -> None:
    assert json.loads(report.read_text())["environment"]["remote_code"] is remote


def test_code_of_a_model_is_refused_unasked(model: Path, tmp_path: Path) -> None:
    code, said = diagnose(model, tmp_path / "out")
    assert code == 4
    assert "needs Python code of its own (auto_map), which is not run" in said
    assert "--trust-remote-code" in said
    assert not (tmp_path / "modules").exists()
    assert not (tmp_path / "out").exists()


def test_opting_in_is_a_flag_and_is_in_the_report(model: Path, tmp_path: Path) -> None:
    assert diagnose(model, tmp_path / "out", "--trust-remote-code") == (0, "")
    check_told(tmp_path / "out" / "report.json", remote=True)


def test_a_report_of_a_plain_model_says_so_too(model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_bytes(model_files()["config.json"])
    assert diagnose(model, tmp_path / "out", "--trust-remote-code") == (0, "")
    check_told(tmp_path / "out" / "report.json", remote=False)


def test_a_file_cannot_opt_in(model: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("trust_remote_code: true\n")
    code, said = diagnose(model, tmp_path / "out", "--config", str(tmp_path / "sweep.yaml"))
    assert code == 2
    assert "sweep.yaml:1 trust_remote_code: a file cannot allow code to run" in said


def test_a_report_that_keeps_silent_is_caught(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "noisescope.diagnosis.sections.environment", lambda model: environment(model) | {"remote_code": False}
    )
    diagnose(model, tmp_path / "out", "--trust-remote-code")
    with pytest.raises(AssertionError):
        check_told(tmp_path / "out" / "report.json", remote=True)


# --- every call that loads says how -----------------------------------------------------------------------------


def careless(source: str) -> list[str]:
    """Calls of from_pretrained that leave something to the library's defaults."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            loads_weights = ast.unparse(node.func.value) not in ("AutoConfig", "AutoTokenizer")
            trusts = given.get("trust_remote_code", "in the options" if None in given else "unsaid")
            safe = given.get("use_safetensors") == "True" or not loads_weights
            if given.get("local_files_only") != "True" or trusts in ("True", "unsaid") or not safe:
                found.append(ast.unparse(node))
    return found


def test_every_call_that_loads_says_how() -> None:
    sources = {file: file.read_text() for file in SRC.rglob("*.py")}
    calling = [str(file.relative_to(SRC)) for file, text in sources.items() if ".from_pretrained(\n" in text]
    assert calling == [str(Path("models") / "opening.py")]
    assert [call for text in sources.values() for call in careless(text)] == []


@pytest.mark.parametrize(
    "line",
    [
        "AutoConfig.from_pretrained(path)",
        "AutoConfig.from_pretrained(path, trust_remote_code=True, local_files_only=True)",
        "AutoTokenizer.from_pretrained(path, trust_remote_code=trust)",
        "auto.from_pretrained(path, trust_remote_code=trust, local_files_only=True)",
        "auto.from_pretrained(path, trust_remote_code=trust, local_files_only=True, use_safetensors=False)",
    ],
)
def test_careless_calls_are_seen(line: str) -> None:
    assert careless(line)


def test_what_transformers_would_do_by_itself(model: Path) -> None:
    """Asked without a word about it, it would ask on stdin: that is why every call says how."""
    with pytest.raises((AssertionError, ValueError, OSError)):
        AutoModelForCausalLM.from_pretrained(model)
