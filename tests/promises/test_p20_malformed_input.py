"""P20: malformed input of any kind is refused: exit 2 to 5, a line that names file and place, and nothing is touched.

CI asks about all classics and some mutations in process, and about a few in processes of their own; `-m slow` about 500
in one process, whose memory bounds that of each.
"""

import functools
import json
import operator
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import malformed_kinds
import pytest
import yaml
from malformed import Answer, Case, Kind, answer, check, classics, mutations, snapshot
from malformed_kinds import KINDS, LLAMA, SMALL, report_files

import noisescope.specs.document as documents
from noisescope.errors import InputError
from noisescope.specs.document import Document, Entry

SOURCE = str(Path(documents.__file__).parents[2])
CLASSICS = [case for kind in KINDS for case in classics(kind)]
A_FEW = ("configuration: a bomb of anchors", "configuration: tabs", "configuration: bytes", "data: half a row")
A_FEW = (*A_FEW, "model: a header without end", "gguf: many values")
MUTATIONS = 6
"""of each kind, in CI"""
MOST_BYTES = 1 << 30


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty directory that messages about a whole model name."""
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.mark.parametrize("case", CLASSICS, ids=lambda case: case.name)
def test_classics(case: Case, home: Path) -> None:
    check(case, answer(case, home))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_mutations(kind: Kind, tmp_path: Path) -> None:
    codes: Counter[bool] = Counter()
    for number, case in zip(range(MUTATIONS), mutations(kind), strict=False):
        (tmp_path / f"model{number}").mkdir()
        found = answer(case, tmp_path / f"model{number}")
        check(case, found)
        codes[found.code == 0] += 1
    assert sum(codes.values()) == MUTATIONS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_valid_files_are_valid(kind: Kind, tmp_path: Path) -> None:
    """Else nothing would be learned from what is refused."""
    for file, content in kind.files().items():
        place = tmp_path / file / "model"
        place.mkdir(parents=True)
        found = answer(Case(kind, file, file, content, classic=False), place)
        assert (found.code, found.said, found.changed) == (0, "", [])
        if kind.whole:
            break


def test_mutations_are_the_same_every_time() -> None:
    for kind in KINDS:
        one, other = (
            [(case.name, case.content) for _, case in zip(range(20), mutations(kind), strict=False)] for _ in "12"
        )
        assert one == other


def other_values(report: bytes, count: int | None = None) -> Iterator[Case]:
    """The report with one of its values replaced or left out, anywhere in it: all that still is JSON."""
    kind = next(kind for kind in KINDS if kind.name == "report")
    ways = [(place, value) for place in _places(json.loads(report)) if place for value in OTHERS]
    for place, value in ways if count is None else random.Random(0).sample(ways, count):
        changed = json.loads(report)
        *above, last = place
        inside = functools.reduce(operator.getitem, above, changed)
        if value is None:
            del inside[last]
        else:
            inside[last] = json.loads(value)
        name = f"report: {'.'.join(map(str, place))} is {value}"
        yield Case(kind, name, "report.json", json.dumps(changed).encode(), classic=False)


OTHERS = (None, "null", "true", "-1", "0", "1e308", '"text"', "[]", "{}", "[[1]]", '{"non_finite": "NaN"}', "1" * 400)


def _places(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from _places(part, (*above, key))


@pytest.mark.parametrize("count", [40, pytest.param(None, marks=pytest.mark.slow)])
def test_reports_with_another_value(count: int | None, tmp_path: Path) -> None:
    """Whatever is believed can be shown."""
    (report,) = report_files().values()
    for number, case in enumerate(other_values(report, count)):
        home = tmp_path / f"{number} model"
        home.mkdir()
        check(case, answer(case, home))


COMMANDS = {
    "configuration": ("diagnose", "--config", "{file}"),
    "data": ("diagnose", str(LLAMA), "--data", "{file}", *SMALL),
    "model": ("diagnose", ".", *SMALL),
    "gguf": ("diagnose", "{file}", *SMALL),
}


@pytest.mark.parametrize("name", A_FEW)
def test_in_a_process_of_its_own(name: str, home: Path) -> None:
    case = next(case for case in CLASSICS if case.name == name)
    case.write(home)
    before = snapshot(home)
    arguments = [part.format(file=case.file) for part in COMMANDS[case.kind.name]]
    world = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "noisescope", *arguments]
    done = subprocess.run(command, cwd=home, env=world, capture_output=True, text=True, check=False)
    assert not done.stdout
    changed = [] if snapshot(home) == before else ["something"]
    said = done.stderr.replace("noisescope: .:", "noisescope: model:")  # the directory was called by its dot
    check(case, Answer(done.returncode, said, changed))


@pytest.mark.slow
def test_five_hundred(tmp_path: Path, record_property) -> None:
    paths = os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])
    world = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, malformed_kinds.__file__, "500"]
    done = subprocess.run(command, env=world, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    for name, value in figures.items():
        record_property(name, value)
    assert figures["refused"] == sum(figures["refused_by_exit_code"].values()) == 500
    assert figures["peak_bytes"] < MOST_BYTES


# --- able to fail -----------------------------------------------------------------------------------------------


def read_by_safe_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(path: Path) -> Document:
        found = yaml.safe_load(path.read_bytes()) or {}
        return Document(str(path), [Entry(str(key), str(value), 1) for key, value in found.items()])

    monkeypatch.setattr(documents, "read_document", mutant)


def an_exception_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_decoded", lambda data, _label: data.decode())


def no_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Document, "refuse", lambda self, line, problem, **_: self.problems.append((line, problem)))


def the_output_is_made_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = documents.read_document

    def mutant(path: Path) -> Document:
        Path("noisescope-out").mkdir()
        return real(path)

    monkeypatch.setattr(documents, "read_document", mutant)


def only_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a message with line breaks in it would look."""
    monkeypatch.setattr("noisescope.cli._say", lambda problems, code: sys.stderr.write("\n".join(problems)) and code)


def everything_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("configuring", "flags"):
        monkeypatch.setattr(f"noisescope.cli.{place}.checked", lambda values, _checks: values)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (read_by_safe_load, "a key twice"),
        (read_by_safe_load, "deep lists"),
        (read_by_safe_load, "a NUL"),
        (an_exception_escapes, "latin-1"),
        (no_line_is_told, "tabs"),
        (the_output_is_made_first, "tabs"),
        (only_the_first_line, "tabs"),
        (everything_is_well, "an unknown level"),
    ],
)
def test_the_mutants_are_caught(monkeypatch: pytest.MonkeyPatch, home: Path, mutant, name: str) -> None:
    case = next(case for case in CLASSICS if case.name == f"configuration: {name}")
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, yaml.YAMLError, UnicodeDecodeError, RecursionError)):
        check(case, answer(case, home))


def test_data_that_is_not_checked_is_caught(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    def mutant(*_given: object, **_more: object) -> None:
        raise InputError("something is wrong")

    monkeypatch.setattr("noisescope.measure.sources.read_file", mutant)
    case = next(case for case in CLASSICS if case.name == "data: half a row")
    with pytest.raises(AssertionError, match="names no file"):
        check(case, answer(case, home))
