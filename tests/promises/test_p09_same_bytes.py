"""P9: the same question gives the same bytes, in this process and in others: no clock, host, path or hash order."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from families import DECODERS, build, tokens
from noisescope.diagnosis import integrated
from noisescope.keys import Key
from noisescope.measure.texts import built_in_text
from noisescope.noise.drawing import Draw
from noisescope.report import Report
from noisescope.report.formats import FORMATS, render

FIXTURES = Path(__file__).parent.parent / "fixtures"
SMALL = ("--n-samples", "8", "--max-length", "12", "--batch-size", "8", "--level", "full")
WORLDS = (
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "UTC", "COLUMNS": "40"},
    {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "TZ": "Pacific/Kiritimati", "NO_COLOR": "1"},
)
HASH_SEED = os.environ.get("PYTHONHASHSEED")
"""of this process; usually none, which is a random one"""
DAY_S = 86_400
COMMANDS = """import sys
from noisescope.cli import main
sys.exit(main(["diagnose", *sys.argv[1:]]) or main(["report", sys.argv[-1], "--format", "png,pdf"]))"""
"""a diagnosis, then the pictures of its report, in one process: starting takes longer than either"""


def check_same(reports: Sequence[bytes]) -> None:
    """All the same bytes; the first line that differs is shown."""
    first, *others = (report.decode(errors="replace").splitlines() for report in reports)
    for other in others:
        differing = [pair for pair in zip(first, other, strict=False) if pair[0] != pair[1]]
        assert not differing, differing[0]
    assert len(set(reports)) == 1


def check_lacks(report: bytes, *words: Path | str) -> None:
    text = report.decode(errors="replace")
    for word in map(str, words):
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text), f"the report says {word}"


def check_nothing_local(report: bytes, *paths: Path | str) -> None:
    """No clock, host or absolute path; `paths` are where it was made."""
    check_lacks(report, socket.gethostname(), *paths, Path.home(), os.getcwd())
    text, sections = report.decode(), json.loads(report)
    assert not re.search(r"\b20\d\d-\d\d-\d\d", text), "a date"
    now = time.time()
    for value in leaves(sections):
        if isinstance(value, str):
            assert not re.search(r"(^|\s)(/[\w.-]+){2}|[A-Z]:\\", value), f"a path: {value}"
        elif not isinstance(value, bool) and value is not None:
            assert not now - DAY_S < value < now + DAY_S, f"a time: {value}"


def leaves(value: Any) -> Iterator[Any]:
    """Keys, and values that hold no others."""
    parts: Iterable[Any] = [*value, *value.values()] if isinstance(value, dict) else value
    if isinstance(value, (dict, list)):
        for part in parts:
            yield from leaves(part)
    else:
        yield value


# --- one process ------------------------------------------------------------------------------------------------


def report_of(family: str, *, short: bool = False, seed: int = 0, state: int = 0) -> Report:
    """A diagnosis of a tiny model, freshly made; `state` is where torch's and numpy's own generators stand."""
    data = ns.open_data([tokens(rows=4, seed=number) for number in range(2)], batch_size=4)
    less = {"level": "layer", "operators": ("linear",)} if short else {"curvature": True}
    spec = ns.DiagnosisSpec(seed=seed, **less)
    model = build(family)
    torch.manual_seed(state)
    np.random.seed(state)
    return ns.diagnose(model, data, spec=spec)


def check_formats(reports: Sequence[Report], names: Iterable[str]) -> None:
    for name in names:
        check_same([render(report.sections, name) for report in reports])


def check_twice(family: str, *, short: bool = False) -> None:
    first, second = (report_of(family, short=short, state=state) for state in (1, 2))
    check_formats([first, second], ["json"] if short else FORMATS)
    check_nothing_local(first.to_json().encode())


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_twice_in_one_process(family):
    check_twice(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", DECODERS)
def test_twice_for_every_family(family):
    check_twice(family)


def test_another_seed_is_another_question():
    with pytest.raises(AssertionError):
        check_same([report_of("llama", short=True, seed=seed).to_json().encode() for seed in (0, 1)])


# --- other processes --------------------------------------------------------------------------------------------


def diagnose_elsewhere(model: str, home: Path, world: dict[str, str]) -> subprocess.Popen[str]:
    """The commands in another world: its directory, hash order, language and clock, and where model and data are."""
    home.mkdir()
    (home / "text.md").write_text(built_in_text()[:20_000])
    (home / model).symlink_to(FIXTURES / model)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ns.__file__).parents[1]), "TMPDIR": str(home)}
    command = [sys.executable, "-c", COMMANDS, f"./{model}", "--data", str(home / "text.md"), *SMALL]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--output", "new/out"], cwd=home, env={**outer, **world, **fixed}, **pipes)


def check_worlds(model: str, tmp_path: Path, worlds: Sequence[dict[str, str]]) -> None:
    """Other processes, and this one with the same question, give the same bytes."""
    homes = [tmp_path / str(number) for number in range(len(worlds))]
    running = [diagnose_elsewhere(model, home, world) for home, world in zip(homes, worlds, strict=True)]
    (tmp_path / "text.md").write_text(built_in_text()[:20_000])
    given = {"tokenizer": AutoTokenizer.from_pretrained(FIXTURES / model), "name": model}
    loaded = AutoModelForCausalLM.from_pretrained(FIXTURES / model).eval()
    small = {"n_samples": 8, "max_length": 12, "batch_size": 8}
    here = ns.diagnose(loaded, str(tmp_path / "text.md"), **given, **small)
    said = [process.communicate(timeout=300) for process in running]
    assert not any(process.returncode for process in running), said
    for name, each in FORMATS.items():
        mine = render(here.sections, name)
        check_same([mine, *((home / "new" / "out" / each.file).read_bytes() for home in homes)])
        check_lacks(mine, tmp_path, FIXTURES)
    check_nothing_local(here.to_json().encode(), tmp_path, FIXTURES)


def test_in_another_process(tmp_path):
    check_worlds("llama", tmp_path, [next(world for world in WORLDS if world["PYTHONHASHSEED"] != HASH_SEED)])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_in_several_processes(model, tmp_path):
    check_worlds(model, tmp_path, WORLDS)


# --- able to fail -----------------------------------------------------------------------------------------------


def sections_with(monkeypatch, **more):
    real = integrated.sections
    monkeypatch.setattr(
        integrated,
        "sections",
        lambda *args, **given: {**real(*args, **given), **{key: make() for key, make in more.items()}},
    )


def the_time_is_in_it(monkeypatch):
    sections_with(monkeypatch, made=time.time)


def the_wall_time_is_in_it(monkeypatch):
    sections_with(monkeypatch, wall_s=time.perf_counter)


def an_address_is_in_it(monkeypatch):
    kept = []
    sections_with(monkeypatch, model=lambda: kept.append(object()) or repr(kept[-1]))


def labels_from_the_global_stream(monkeypatch):
    monkeypatch.setattr(Key, "generator", lambda self, device="cpu": torch.default_generator)


def noise_from_the_global_stream(monkeypatch):
    def mutant(self, key, device):
        self._bits = np.random.SFC64(np.random.randint(2**31))

    monkeypatch.setattr(Draw, "__init__", mutant)


@pytest.mark.parametrize(
    "mutant",
    [
        the_time_is_in_it,
        the_wall_time_is_in_it,
        an_address_is_in_it,
        labels_from_the_global_stream,
        noise_from_the_global_stream,
    ],
)
def test_the_mutants_are_caught(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_twice("llama", short=True)


MAKERS = {
    "md": "markdown.render_markdown",
    "html": "html.render_html",
    "png": "paper.render_png",
    "pdf": "paper.render_pdf",
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_format_with_a_clock_in_it_is_caught(monkeypatch, name):
    report = report_of("llama", short=True)
    home, maker = MAKERS[name].split(".")
    module = import_module(f"noisescope.report.{home}")
    real = getattr(module, maker)

    def mutant(sections):
        made, clock = real(sections), f"<!-- {time.perf_counter_ns()} -->"
        return made + clock if isinstance(made, str) else made + clock.encode()

    check_formats([report, report], [name])
    monkeypatch.setattr(module, maker, mutant)
    with pytest.raises(AssertionError):
        check_formats([report, report], [name])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (time.time(), "a time"),
        (time.strftime("%Y-%m-%dT%H:%M"), "a date"),
        ("read from /var/lib/models/llama", "a path"),
        (socket.gethostname(), "the report says"),
        ("in a place", "the report says"),
    ],
    ids=["time", "date", "path", "host", "place"],
)
def test_what_is_local_is_caught(given, why):
    with pytest.raises(AssertionError, match=why):
        check_nothing_local(json.dumps({"config": [given, "and"]}).encode(), "a place")


def test_an_iterated_set_is_caught():
    """Only another process has another hash order."""
    code = "from noisescope.store.encoding import encode; print(encode(list({'linear', 'softmax', 'silu', 'gelu'})))"
    source = str(Path(ns.__file__).parents[1])
    worlds = [{**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": str(seed)} for seed in range(4)]
    made = [
        subprocess.run([sys.executable, "-c", code], env=world, capture_output=True, check=True) for world in worlds
    ]
    with pytest.raises(AssertionError):
        check_same([done.stdout for done in made])
