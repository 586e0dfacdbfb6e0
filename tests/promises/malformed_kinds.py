"""The kinds of input that P20 is about, with the classics of each.

To add a kind, write a `Kind` (valid files, what a person would run over them, classics) and put it into `KINDS`.
As a program this asks until so many were refused and prints what happened as JSON:

    PYTHONPATH=src:tests python tests/promises/malformed_kinds.py 500
"""

import importlib.util
import io
import json
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from malformed import DIRECTORY, Case, Kind, WentOn, answer, check, classics, mutations
from malformed_baselines import BASELINES
from malformed_traces import TRACES
from transformers import LlamaConfig, LlamaForCausalLM

import noisescope as ns
import noisescope.models
from families import CONFIGS, build, tokens
from noisescope.cli import main
from noisescope.cli.run_directory import peak_bytes

TESTS = Path(__file__).parent.parent
LLAMA = TESTS / "fixtures" / "llama"
TEXT = TESTS / "fixtures" / "README.md"
SMALL = ("--n-samples", "4", "--max-length", "12", "--batch-size", "4")


# --- asking -----------------------------------------------------------------------------------------------------


def stop(*_given: object, **_more: object) -> None:
    raise WentOn


def ask_configuration(home: Path, file: str) -> int:
    with (
        mock.patch("noisescope.measure.sources.require_file", str),  # its data is not there, which is another matter
        mock.patch.object(noisescope.models, "load", stop),
    ):
        return main(["diagnose", "--config", file])


@cache
def loaded() -> object:
    return noisescope.models.load(LLAMA)


def ask_data(home: Path, file: str) -> int:
    model = loaded()
    with (
        mock.patch.object(noisescope.models, "load", return_value=model),
        mock.patch("noisescope.diagnosis.integrated.Diagnosis", stop),
    ):
        return main(["diagnose", str(LLAMA), "--data", str(home / file), *SMALL])


def ask_report(home: Path, file: str) -> int:
    for form in ((), ("--format", "md", "-o", "-"), ("--format", "html", "-o", "-")):
        if code := main(["report", str(home / file), *form]):
            return code
    raise WentOn


def ask_model(home: Path, file: str) -> int:
    with mock.patch("noisescope.diagnosis.integrated.Diagnosis", stop):
        return main(["diagnose", str(home), "--data", str(TEXT), *SMALL])


def ask_gguf(home: Path, file: str) -> int:
    with mock.patch("noisescope.diagnosis.integrated.Diagnosis", stop):
        return main(["diagnose", str(home / file), "--data", str(TEXT), *SMALL])


CONFIGURATION = b"""\
# a configuration with a bit of everything
model: path/to/model
data: "texts.jsonl"
preset: quick
n_samples: 8
operator:
  noise_scale: 1e-2
  operators: [softmax, norm]
layer: {window_size: 3, step_size: 1, noise_scale: 0.02}
layers: 0-2,head
channel:
  outlier_threshold: 10.0
curvature: no
level: full
seed: 0
output: out
"""
BOMB = "a0: &a0 [lol, lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 60))
CONFIGURATIONS = {
    "tabs": b"layer:\n\twindow_size: 3\n",
    "an open bracket": b"layers: [1, 2\nseed: 1\n",
    "an open quote": b'data: "texts\nseed: 1\n',
    "a key twice": b"seed: 1\nseed: 2\n",
    "a key twice in a section": b"layer:\n  window_size: 2\n  window_size: 3\n",
    "one thing by two names": b"operators: norm\noperator:\n  operators: linear\n",
    "a bomb of anchors": BOMB.encode(),
    "a merge": b"base: &base {seed: 1}\nlayer:\n  <<: *base\n",
    "a number in words": b"layer:\n  window_size: three\n",
    "a list for a number": b"noise_scale: [0.1]\n",
    "a table for a number": b"noise_scale: {a: 1}\n",
    "a number for a section": b"layer: 3\n",
    "a number for a switch": b"curvature: 2\n",
    "an unknown key": b"noise_scal: 0.1\n",
    "an unknown level": b"level: foo\n",
    "an unknown operator": b"operators: [sofmax]\n",
    "an unknown layer": b"layers: [haed]\n",
    "a negative scale": b"noise_scale: -1\n",
    "no number": b"noise_scale: .nan\n",
    "a window of nothing": b"window_size: 0\n",
    "a million digits": b"seed: " + b"9" * 60_000,
    "deep lists": b"layers: " + b"[" * 60_000,
    "deep tables": b"{" * 60_000,
    "deep blocks": b"- " * 30_000,
    "several documents": b"seed: 1\n---\nseed: 2\n",
    "a list": b"- seed\n- 1\n",
    "a word": b"seed\n",
    "a huge file": b"# " + b"x" * (1 << 20),
    "bytes": bytes(range(256)),
    "latin-1": "data: caf\u00e9".encode("latin-1"),
    "utf-16": "seed: 1".encode("utf-16"),
    "a NUL": b"seed: 1\ndata: a\0b\n",
    "an escaped NUL": b'output: "a\\0b"\n',
    "half a character": b'data: "\\uD800"\n',
    "beyond Unicode": b'data: "\\UFFFFFFFF"\n',
    "a Python object": b"model: !!python/object/apply:os.system [id]\n",
    "a tag at the root": b"!!python/object/new:type\nargs: [z]\n",
    "another configuration": b"config: b.yaml\n",
    "code allowed": b"trust_remote_code: true\n",
    "no file": None,
    "a directory": DIRECTORY,
}


@cache
def data_files() -> dict[str, bytes]:
    rows = [{"text": f"the {number} windows of a house look on the street, {'and ' * number}on"} for number in range(8)]
    choices = [{"query": "one and one is", "choices": ["two", "three"], "gold": 0}] * 6
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), table)
    return {
        "texts.txt": "\n".join(row["text"] for row in rows * 3).encode(),
        "rows.jsonl": "\n".join(map(json.dumps, rows)).encode(),
        "choices.jsonl": "\n".join(map(json.dumps, choices)).encode(),
        "rows.json": json.dumps(rows, indent=1).encode(),
        "rows.parquet": table.getvalue(),
    }


DATA = {
    "an empty text": ("a.txt", b""),
    "blank text": ("a.txt", b" \n\t\n"),
    "a short text": ("a.txt", b"hello"),
    "bytes for text": ("a.txt", bytes(range(256)) * 10),
    "a NUL in text": ("a.txt", b"one\ntwo\0three\n" * 10),
    "latin-1": ("a.md", "caf\u00e9 ".encode("latin-1") * 99),
    "no rows": ("a.jsonl", b""),
    "half a row": ("a.jsonl", b'{"text": "one two three"}\n{"text": '),
    "a list for a row": ("a.jsonl", b'[1, 2]\n{"text": "a b c"}\n'),
    "no known field": ("a.jsonl", b'{"words": "one two three"}\n' * 4),
    "a number for text": ("a.jsonl", b'{"text": 3}\n' * 4),
    "nothing for text": ("a.jsonl", b'{"text": null}\n' * 4),
    "one row": ("a.jsonl", b'{"text": "one two three"}\n'),
    "a wrong choice": ("a.jsonl", b'{"query": "a", "choices": ["b", "c"], "gold": 7}\n' * 4),
    "no choices": ("a.jsonl", b'{"query": "a", "choices": [], "gold": 0}\n' * 4),
    "not JSON": ("a.json", b"{text: one}"),
    "deep JSON": ("a.json", b"[" * 200_000),
    "a huge number": ("a.json", b'[{"text": ' + b"9" * 100_000 + b"}]"),
    "a word for rows": ("a.json", b'"text"'),
    "no parquet": ("a.parquet", b"PAR1 it is not PAR1"),
    "an empty parquet": ("a.parquet", b""),
    "a table": ("a.csv", b"text\none two\n"),
    "a pickle": ("a.pkl", b"\x80\x04K\x01."),
    "no file": ("a.jsonl", None),
    "a directory": ("a.jsonl", DIRECTORY),
}


@cache
def report_files() -> dict[str, bytes]:
    spec = ns.DiagnosisSpec(operators=("linear",))
    return {"report.json": ns.diagnose(build("llama"), [tokens(rows=4)], spec=spec).to_json().encode()}


def _report_without(name: str) -> bytes:
    return b'{"schema_version": 1, "' + name.encode() + b'": 3}'


REPORTS = {
    "nothing": b"",
    "no JSON": b"a report",
    "another JSON": b"[1, 2, 3]",
    "an empty table": b"{}",
    "a version to come": b'{"schema_version": 99}',
    "a version in words": b'{"schema_version": "one"}',
    "one section": _report_without("map"),
    "bare NaN": b'{"schema_version": NaN}',
    "deep": b'{"a":' * 100_000,
    "many digits": b'{"schema_version": ' + b"9" * 10_000 + b"}",
    "bytes": bytes(range(256)),
    "utf-16": "{}".encode("utf-16"),
    "no file": None,
}


@cache
def model_files() -> dict[str, bytes]:
    """A directory, as small as a model can be: loading one hundreds of times is to be quick."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home:
        LlamaForCausalLM(LlamaConfig(**{**CONFIGS["llama"].to_dict(), "vocab_size": 512})).save_pretrained(home)
        files = {path.name: path.read_bytes() for path in Path(home).iterdir()}
    return files | {name: (LLAMA / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}


def _tensor_header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


MODELS = {
    "no configuration": ("config.json", None),
    "an empty configuration": ("config.json", b""),
    "a list for a configuration": ("config.json", b"[]"),
    "no kind of model": ("config.json", b"{}"),
    "an unknown kind of model": ("config.json", b'{"model_type": "lama"}'),
    "a kind of model in a list": ("config.json", b'{"model_type": ["llama"]}'),
    "a million layers": ("config.json", b'{"model_type": "llama", "num_hidden_layers": 1000000}'),
    "layers in words": ("config.json", b'{"model_type": "llama", "num_hidden_layers": "three"}'),
    "a deep configuration": ("config.json", b'{"a":' * 100_000),
    "remote code": ("config.json", b'{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}'),
    "no weights": ("model.safetensors", None),
    "empty weights": ("model.safetensors", b""),
    "weights of zeros": ("model.safetensors", bytes(1000)),
    "a header without end": ("model.safetensors", struct.pack("<Q", 1 << 60)),
    "a header of nothing": ("model.safetensors", _tensor_header("{}")),
    "a header that is no JSON": ("model.safetensors", _tensor_header("{a}")),
    "a tensor beyond the end": (
        "model.safetensors",
        _tensor_header('{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'),
    ),
    "weights in a directory": ("model.safetensors", DIRECTORY),
    "no words": ("tokenizer.json", b"{}"),
    "words that are no JSON": ("tokenizer.json", b"words"),
    "an adapter": ("adapter_config.json", b"{}"),
}


@cache
def gguf_files() -> dict[str, bytes]:
    place = TESTS / "unit" / "models" / "tiny_models.py"
    spec = importlib.util.spec_from_file_location("tiny_models_of_p20", place)
    assert spec is not None
    assert spec.loader is not None
    writing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writing)
    with tempfile.TemporaryDirectory() as home:
        writing.write_gguf(Path(home) / "model.gguf")
        return {"model.gguf": (Path(home) / "model.gguf").read_bytes()}


GGUF = {
    "empty": b"",
    "only the magic": b"GGUF",
    "another magic": b"GGML" + bytes(100),
    "many tensors": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
    "many values": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    "a name without end": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60),
    "a version to come": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "nothing in it": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
}


def _all_in(file: str, classics: Mapping[str, bytes | str | None]) -> dict[str, tuple[str, bytes | str | None]]:
    return {name: (file, content) for name, content in classics.items()}


KINDS = (
    Kind(
        "configuration",
        lambda: {"sweep.yaml": CONFIGURATION},
        ask_configuration,
        _all_in("sweep.yaml", CONFIGURATIONS),
    ),
    Kind("data", data_files, ask_data, DATA),
    Kind("report", report_files, ask_report, _all_in("report.json", REPORTS)),
    Kind("model", model_files, ask_model, MODELS, whole=True),
    Kind("gguf", gguf_files, ask_gguf, _all_in("model.gguf", GGUF)),
    TRACES,
    BASELINES,
)


# --- all of them ------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """All classics, then mutations of every kind in turn, without end."""
    for kind in KINDS:
        yield from classics(kind)
    for turn in zip(*(mutations(kind) for kind in KINDS), strict=False):
        yield from turn


def run(count: int) -> dict[str, Any]:
    """Asks about inputs until so many were refused, and gives the figures; the first failure is raised."""
    codes: Counter[int] = Counter()
    worst_s, worst = 0.0, ""
    for case in cases():
        with tempfile.TemporaryDirectory(prefix="model-") as home:
            started = time.perf_counter()
            found = answer(case, Path(home))
            spent = time.perf_counter() - started
        check(case, found)
        codes[found.code] += 1
        if spent > worst_s:
            worst_s, worst = spent, case.name
        if codes.total() - codes[0] == count:
            break
    return {
        "refused": count,
        "valid_by_luck": codes.pop(0, 0),
        "refused_by_exit_code": {str(code): number for code, number in sorted(codes.items())},
        "worst_s": worst_s,
        "worst": worst,
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(int(sys.argv[1]))) + "\n")
