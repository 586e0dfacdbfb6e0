"""P25: strict JSON always; what is not finite is encoded, the schema is kept, and earlier versions load."""

import json
from collections.abc import Iterator
from copy import deepcopy
from math import inf, nan
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from asking import Asking

import noisescope as ns
from families import tokens
from noisescope.comparing import compare
from noisescope.diagnosis import integrated
from noisescope.report import Report
from noisescope.report.divergence import render_comparison
from noisescope.store import Journal, encoding, journal
from noisescope.traces import trace

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "report.schema.json").read_bytes()))
KINDS = {
    "operators": "--level operator",
    "channels": "--level channel",
    "everything": "--level full --layers 5-7,head --operators linear,norm",
    "all sampled": "--sampled all --trials 2",
    "curvature": "--curvature",
    "another noise": "--error-type uniform --layer-noise-scale 0.2",
    "no map": "--error-type stuck_at --noise-scale 0.01 --operators linear",
    "failed": "--error-type bit_flip --noise-scale 0.05 --operators linear",
    "far too much": "--noise-scale 1e30 --operators linear",
}


def strict(text: bytes) -> Any:
    """The value of strict JSON in UTF-8: no bare constant, no name twice, nothing after it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"a bare {constant}")

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs), "a name twice"
        return dict(pairs)

    return json.loads(text.decode("utf-8"), parse_constant=refuse, object_pairs_hook=table)


def check_report(text: bytes) -> None:
    """Strict, as published, and the same after it was read."""
    SCHEMA.validate(strict(text))
    assert Report({**encoding.decode(text.decode())}).to_json().encode() == text


def check_directory(output: Path) -> None:
    """All that a run leaves."""
    check_report((output / "report.json").read_bytes())
    assert Report.load(output).to_json().encode() == (output / "report.json").read_bytes()
    strict((output / "run.json").read_bytes())
    for line in (output / "journal").read_bytes().splitlines():
        assert line.isascii()
        strict(line[17:])


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_many_kinds(asking, tmp_path, kind):
    ran = asking.run(tmp_path / "out", *KINDS[kind].split())
    assert ran.code == (1 if kind in ("failed", "far too much") else 0), ran.err
    check_directory(tmp_path / "out")


def inconclusive(model: Any, journal: Journal | None = None) -> Report:
    """A model with random weights, which guesses."""
    data = ns.open_data([tokens(rows=4, seed=0)], batch_size=4)
    return ns.diagnose(model, data, spec=ns.DiagnosisSpec(level="layer", operators=("linear",)), journal=journal)


def test_an_inconclusive_run(tiny, tmp_path):
    with Journal(tmp_path / "journal") as kept:
        report = inconclusive(tiny, kept)
    assert not report.sections["metrics"]["clean"]["conclusive"]
    check_report(report.to_json().encode())


# --- not finite -------------------------------------------------------------------------------------------------


def numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the floats are."""
    if isinstance(value, float):
        return [path]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, part in parts for place in numbers(part, (*path, name))]


def spoilt(sections: dict[str, Any], every: int) -> Iterator[dict[str, Any]]:
    """Copies in which a float is NaN or infinite, each of them in turn."""
    for at, path in enumerate(numbers(sections)[::every]):
        changed = deepcopy(sections)
        part = changed
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = (nan, inf, -inf)[at % 3]
        yield changed


def check_not_finite(sections: dict[str, Any], every: int) -> int:
    """Every float in turn is NaN or infinite; how many there were."""
    count = 0
    for count, changed in enumerate(spoilt(sections, every), 1):  # noqa: B007 - counted
        text = Report(changed).to_json().encode()
        check_report(text)
        assert repr(encoding.decode(text.decode())) == repr(changed)
    return count


def test_what_is_not_finite_is_encoded(asking):
    assert check_not_finite(dict(Report.load(asking.undisturbed).sections), every=10) > 10


@pytest.mark.slow
def test_whatever_is_not_finite_is_encoded(asking, record_property):
    record_property("floats", check_not_finite(dict(Report.load(asking.undisturbed).sections), every=1))


def test_a_comparison_with_what_is_not_finite_is_strict(tiny):
    reference = trace(tiny, tokens(rows=2, seed=0), inputs=True, checkpoint="x")
    suspect = trace(tiny, tokens(rows=2, seed=0), inputs_from=reference, emulate="tf32", checkpoint="x")
    sections = dict(compare(reference, suspect).sections)
    for changed in spoilt(sections, every=len(numbers(sections)) // 12):
        text = render_comparison(changed, "json").encode()
        strict(text)
        assert repr(encoding.decode(text.decode())) == repr(changed)
        for name in ("md", "html"):
            assert render_comparison(changed, name)


def test_a_journal_keeps_what_is_not_finite(tmp_path):
    values = [nan, inf, -inf, 0.1, -0.0, 5e-324]
    with Journal(tmp_path / "journal") as first:
        first.begin({"scale": inf})
        first.keep("values", values)
    for line in (tmp_path / "journal").read_bytes().splitlines():
        strict(line[17:])
    with Journal(tmp_path / "journal") as second:
        second.begin({"scale": inf})
        assert repr(second.recall(list, "values")) == repr(values)


# --- earlier versions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((ROOT / "tests" / "golden").glob("report-v*.json")), ids=lambda file: file.name)
def test_earlier_versions_load(file):
    strict(file.read_bytes())
    report = Report.load(file)
    check_report(report.to_json().encode())
    assert report.to_markdown()
    assert report.to_html()
    assert str(report)


# --- able to fail -----------------------------------------------------------------------------------------------


def bare_constants(monkeypatch):
    monkeypatch.setattr("noisescope.report.report.encode", lambda value: json.dumps(value, indent=1) + "\n")


def what_is_not_finite_is_null(monkeypatch):
    real = encoding._plain
    monkeypatch.setattr(
        encoding, "_plain", lambda value: None if value in (nan, inf, -inf) or value != value else real(value)
    )


def what_is_not_finite_is_text(monkeypatch):
    monkeypatch.setattr(encoding, "_name", lambda value: repr(value))


@pytest.mark.parametrize("mutant", [bare_constants, what_is_not_finite_is_null, what_is_not_finite_is_text])
def test_encodings_that_lose_something_are_caught(asking, monkeypatch, mutant):
    sections = dict(Report.load(asking.undisturbed).sections)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, jsonschema.ValidationError)):
        check_not_finite(sections, every=40)


@pytest.mark.parametrize(
    "change",
    [
        {"operator_analysis": []},
        {"layer_analysis": {"L0": {"kl": 0.1}}},
        {"executive_summary": {}},
        {"schema_version": 3},
        {"cost": {"forward_pass_equivalents": "many", "by_stage": {}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_section_of_another_shape_is_caught(tiny, monkeypatch, change):
    real = integrated.sections
    monkeypatch.setattr(integrated, "sections", lambda *args, **more: {**real(*args, **more), **change})
    with pytest.raises((AssertionError, jsonschema.ValidationError)):
        check_report(inconclusive(tiny).to_json().encode())


def test_a_journal_with_bare_constants_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "encode_line", json.dumps)
    with pytest.raises(AssertionError, match="a bare Infinity"):
        test_a_journal_keeps_what_is_not_finite(tmp_path)


def test_a_directory_that_lost_something_is_caught(asking: Asking, tmp_path):
    for name in ("report.json", "run.json", "journal"):
        (tmp_path / name).write_bytes((asking.undisturbed / name).read_bytes())
    (tmp_path / "run.json").write_text('{"runs": [NaN]}')
    with pytest.raises(AssertionError, match="a bare NaN"):
        check_directory(tmp_path)
