"""P21: nothing that is read can execute: payloads leave their canary alone, and no line of the source could light them.

Each payload writes over the canary if it is run. What is not refused goes as far as the data and the model are read.
"""

import ast
import io
import json
import pickle
import pickletools
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import gguf
import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from malformed import WentOn
from malformed_kinds import LLAMA, SMALL, TEXT, gguf_files, model_files, stop
from malformed_traces import valid as valid_trace
from transformers import dynamic_module_utils

import noisescope
from noisescope.cli import main
from noisescope.errors import ModelError, NoisescopeError
from noisescope.report import Report
from noisescope.specs.document import Document

SRC = Path(noisescope.__file__).parent
ROWS = [{"text": f"the {number} windows of a house look on the street"} for number in range(8)]
CHATS = [
    {"prompt": [{"role": "user", "content": "one and one?"}], "reward_model": {"ground_truth": "2"}} for _ in range(4)
]


class Payload:
    """Runs its code when it is unpickled."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (self.code,)


def model_in(home: Path, **changes: bytes | None) -> Path:
    """A tiny model in a directory, with some files changed; `a__b` is the file a.b."""
    place = home / "model"
    place.mkdir()
    files = {**model_files(), **{name.replace("__", "."): content for name, content in changes.items()}}
    for name, content in files.items():
        if content is not None:
            (place / name).write_bytes(content)
    return place


def config_with(**more: object) -> bytes:
    return json.dumps(json.loads(model_files()["config.json"]) | more).encode()


def tokenizer_with(**more: object) -> bytes:
    return json.dumps(json.loads(model_files()["tokenizer_config.json"]) | more).encode()


def written(place: Path, content: str | bytes) -> Path:
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def lines(rows: list[dict]) -> str:
    return "\n".join(map(json.dumps, rows))


def diagnose(model: Path = LLAMA, data: Path | str = TEXT, *more: object) -> list[str]:
    return ["diagnose", *map(str, (model, "--data", data, *SMALL, *more))]


# --- payloads: each gets a directory and the code that would kill the canary ------------------------------------


def a_pickled_model(home: Path, code: str) -> list[str]:
    return diagnose(model_in(home, model__safetensors=None, pytorch_model__bin=pickle.dumps(Payload(code))))


def a_pickle_beside_the_weights(home: Path, code: str) -> list[str]:
    return diagnose(model_in(home, pytorch_model__bin=pickle.dumps(Payload(code)), training_args__bin=b""))


def a_pickled_file(home: Path, code: str) -> list[str]:
    return diagnose(written(home / "model.pt", pickle.dumps(Payload(code))))


def code_beside_the_model(home: Path, code: str) -> list[str]:
    own = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    return diagnose(model_in(home, config__json=config_with(model_type="evil", auto_map=own), evil__py=code.encode()))


def code_for_a_known_model(home: Path, code: str) -> list[str]:
    own = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    return diagnose(model_in(home, config__json=config_with(auto_map=own), evil__py=code.encode()))


def code_of_a_tokenizer(home: Path, code: str) -> list[str]:
    own = tokenizer_with(tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    return diagnose(model_in(home, tokenizer_config__json=own, evil__py=code.encode()))


def _template(code: str) -> str:
    return "{{ cycler.__init__.__globals__.os.__builtins__.exec(" + json.dumps(code) + ") }}{{ messages }}"


def a_chat_template(home: Path, code: str) -> list[str]:
    model = model_in(home, tokenizer_config__json=tokenizer_with(chat_template=_template(code)))
    return diagnose(model, written(home / "chats.jsonl", lines(CHATS)))


def a_template_in_a_message(home: Path, code: str) -> list[str]:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    model = model_in(home, tokenizer_config__json=tokenizer_with(chat_template=template))
    said = [{"role": "user", "content": _template(code)}]
    return diagnose(model, written(home / "chats.jsonl", lines([chat | {"prompt": said} for chat in CHATS])))


def a_gguf_of_odd_strings(home: Path, code: str) -> list[str]:
    real = gguf.GGUFWriter
    gguf_files.cache_clear()
    with (
        mock.patch.object(real, "add_chat_template", lambda self, _: self.add_string(CHAT_KEY, _template(code))),
        mock.patch.object(real, "add_name", lambda self, _: self.add_string("general.name", f"__import__({code!r})")),
    ):
        content = gguf_files()["model.gguf"]
    gguf_files.cache_clear()
    return diagnose(written(home / "model.gguf", content), written(home / "chats.jsonl", lines(CHATS)))


def a_configuration(home: Path, code: str) -> list[str]:
    text = f"model: !!python/object/apply:builtins.exec [{json.dumps(code)}]\n"
    return ["diagnose", "--config", str(written(home / "sweep.yaml", text))]


def a_configuration_of_new_objects(home: Path, code: str) -> list[str]:
    kind = "!!python/object/new:type\nargs: [z, !!python/tuple [], {extend: !!python/name:exec }]\n"
    text = f"{kind}listitems: {json.dumps(code)}\n"
    return ["diagnose", "--config", str(written(home / "sweep.yaml", text))]


def pickled_data(home: Path, code: str) -> list[str]:
    return diagnose(LLAMA, written(home / "rows.pkl", pickle.dumps(Payload(code))))


def arrays_of_objects(home: Path, code: str) -> list[str]:
    table = io.BytesIO()
    np.savez(table, text=np.array([Payload(code)], dtype=object))
    return diagnose(LLAMA, written(home / "rows.npz", table.getvalue()))


def a_parquet_extension(home: Path, code: str) -> list[str]:
    """pyarrow once unpickled the metadata of a type as soon as it read it (CVE-2023-47248)."""
    kind = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Payload(code))}
    schema = pa.schema([pa.field("text", pa.string(), metadata=kind)], metadata={"pandas": json.dumps({"x": code})})
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS, schema=schema), table)
    return diagnose(LLAMA, written(home / "rows.parquet", table.getvalue()))


def _constructors(code: str) -> dict[str, object]:
    call = {"__reduce__": ["builtins.exec", [code]], "__class__": "builtins.exec", "args": [code]}
    return {"py/reduce": [{"py/function": "builtins.exec"}, {"py/tuple": [code]}], "__jsonclass__": call, **call}


def constructors_in_rows(home: Path, code: str) -> list[str]:
    return diagnose(LLAMA, written(home / "rows.jsonl", lines([row | _constructors(code) for row in ROWS])))


def a_loading_script(home: Path, code: str) -> list[str]:
    return diagnose(LLAMA, written(home / "rows.py", code))


def a_dataset_with_a_script(home: Path, code: str) -> list[str]:
    (home / "org" / "rows").mkdir(parents=True)
    written(home / "org" / "rows" / "rows.py", code)
    return diagnose(LLAMA, "org/rows")


def constructors_in_a_report(home: Path, code: str) -> Callable[[], object]:
    file = written(home / "report.json", json.dumps({"schema_version": 1, **_constructors(code)}))
    return lambda: str(Report.load(file))


def a_report_that_is_an_expression(home: Path, code: str) -> Callable[[], object]:
    file = written(home / "report.json", f"exec({code!r})")
    return lambda: str(Report.load(file))


def a_pickled_trace(home: Path, code: str) -> list[str]:
    file = written(home / "suspect.trace", pickle.dumps(Payload(code)))
    return ["compare", str(file), str(file)]


def a_trace_by_torch_save(home: Path, code: str) -> list[str]:
    torch.save({"sketch": Payload(code)}, home / "suspect.trace")
    return ["compare", str(home / "suspect.trace"), str(home / "suspect.trace")]


def names_that_are_an_expression(home: Path, code: str) -> list[str]:
    file = written(home / "names.json", f"exec({code!r})")
    trace = written(home / "good.trace", valid_trace())
    return ["compare", str(trace), str(trace), "--map", str(file)]


CHAT_KEY = "tokenizer.chat_template"
PAYLOADS = (
    a_pickled_model,
    a_pickle_beside_the_weights,
    a_pickled_file,
    code_beside_the_model,
    code_for_a_known_model,
    code_of_a_tokenizer,
    a_chat_template,
    a_template_in_a_message,
    a_gguf_of_odd_strings,
    a_configuration,
    a_configuration_of_new_objects,
    pickled_data,
    arrays_of_objects,
    a_parquet_extension,
    constructors_in_rows,
    a_loading_script,
    a_dataset_with_a_script,
    constructors_in_a_report,
    a_report_that_is_an_expression,
    a_pickled_trace,
    a_trace_by_torch_save,
    names_that_are_an_expression,
)


def check_inert(payload: Callable[[Path, str], object], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary lives after the payload was read, refused or not."""
    canary = written(home / "canary", "alive")
    monkeypatch.chdir(home)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(home / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = f"import pathlib; pathlib.Path({str(canary)!r}).write_text('gone')"
    asked = payload(home, code)
    assert canary.read_text() == "alive", "writing the payload must not run it"
    with (
        mock.patch("noisescope.diagnosis.integrated.Diagnosis", stop),
        redirect_stderr(io.StringIO()),
        redirect_stdout(io.StringIO()),
    ):
        try:
            asked() if callable(asked) else main(asked)  # type: ignore[arg-type]
        except (WentOn, NoisescopeError):
            pass
        except Exception:
            assert canary.read_text() == "alive", "the payload ran"
            raise
    assert canary.read_text() == "alive", "the payload ran"


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.__name__)
def test_payloads(payload: Callable[[Path, str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_inert(payload, tmp_path, monkeypatch)


# --- able to fail: each mutant reads as others do, and the canary dies ------------------------------------------


def code_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = noisescope.models.load
    monkeypatch.setattr(
        noisescope.models, "load", lambda *given, **more: real(*given, **{**more, "trust_remote_code": True})
    )


def pickles_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(label: str, name: str) -> ModelError:
        place = Path(label)
        pickle.loads((place / name if place.is_dir() else place).read_bytes())
        return ModelError(label)

    monkeypatch.setattr("noisescope.models.checkpoint.pickle_refused", mutant)
    monkeypatch.setattr("noisescope.models.sources.pickle_refused", mutant)


def templates_have_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.chat_template_utils.ImmutableSandboxedEnvironment", jinja2.Environment)


def yaml_makes_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(path: Path) -> Document:
        yaml.unsafe_load(path.read_text())
        return Document(str(path))

    monkeypatch.setattr("noisescope.specs.document.read_document", mutant)


def data_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(path: Path, _label: str) -> object:
        if path.suffix == ".npz":
            return [*np.load(path, allow_pickle=True).values()]
        return pickle.loads(path.read_bytes())

    monkeypatch.setattr("noisescope.measure.sources.read_file", mutant)


def scripts_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisescope.measure.sources.read_file", lambda path, _label: exec(path.read_text()))


def reports_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisescope.report.report.decode", lambda text: eval(text))


@pytest.mark.parametrize(
    ("mutant", "payload"),
    [
        (code_is_trusted, code_beside_the_model),
        (code_is_trusted, code_of_a_tokenizer),
        (pickles_are_loaded, a_pickled_model),
        (pickles_are_loaded, a_pickled_file),
        (templates_have_no_sandbox, a_chat_template),
        (yaml_makes_objects, a_configuration),
        (data_is_unpickled, pickled_data),
        (data_is_unpickled, arrays_of_objects),
        (scripts_are_run, a_loading_script),
        (reports_are_evaluated, a_report_that_is_an_expression),
    ],
    ids=lambda given: given.__name__,
)
def test_the_mutants_are_caught(mutant, payload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="the payload ran"):
        check_inert(payload, tmp_path, monkeypatch)


def test_the_payloads_are_live() -> None:
    """A pickle that would not run would prove nothing."""
    assert "REDUCE" in "".join(found[0].name for found in pickletools.genops(pickle.dumps(Payload("pass"))))


# --- no line of the source could light them ---------------------------------------------------------------------

BUILTINS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "code", "runpy"}
CALLS = {
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"),
    *("os.system", "os.popen", "os.execv", "os.execvp", "pandas.read_pickle", "pd.read_pickle", "runpy.run_path"),
}
PROCESSES = {"models/default.py"}
"""the default model is a wheel that pip fetches"""


def executing(source: str) -> list[str]:
    """What in a source could execute what it reads, with lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level and node.module else []
        found += [f"{node.lineno}: import {name}" for name in names if name.partition(".")[0] in MODULES]  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            found += [f"{node.lineno}: {why}" for why in _wrong(node)]
    return found


def _wrong(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return [
        why
        for why, wrong in {
            name: name in BUILTINS | CALLS,
            "torch.load without weights_only": name == "torch.load" and given.get("weights_only") != "True",
            "allow_pickle": given.get("allow_pickle", "False") != "False",
            "trust_remote_code": given.get("trust_remote_code") == "True",
            "a shell": given.get("shell", "False") != "False",
        }.items()
        if wrong
    ]


def test_no_source_executes_what_it_reads() -> None:
    files = sorted(SRC.rglob("*.py"))
    assert len(files) > 100
    assert [f"{file.relative_to(SRC)}:{why}" for file in files for why in executing(file.read_text())] == []


def test_only_the_fetching_of_the_default_model_starts_a_process() -> None:
    starting = {str(file.relative_to(SRC)) for file in SRC.rglob("*.py") if "subprocess" in file.read_text()}
    assert starting == PROCESSES


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as p",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "AutoConfig.from_pretrained(path, trust_remote_code=True)",
        "input('go on?')",
    ],
)
def test_the_scan_sees(line: str) -> None:
    assert executing(line)


@pytest.mark.parametrize(
    "line",
    [
        "re.compile(text)",
        "model.eval()",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "open_model(path, trust_remote_code=trust_remote_code)",
        "from .models import load",
    ],
)
def test_the_scan_lets_pass(line: str) -> None:
    assert not executing(line)
