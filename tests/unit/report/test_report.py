"""The report: strict JSON there and back, files that are none, the map as a table, the summary."""

import json
import math
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from families import build, tokens
from noisescope.errors import InputError, StoreError
from noisescope.report import MapTable, Report
from noisescope.store.encoding import decode, encode
from odd_reports import failed_row, figure
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def report() -> Report:
    model, tokenizer = fixture("llama")
    return ns.diagnose(model, None, tokenizer=tokenizer, n_samples=10, max_length=12, batch_size=10, name="a llama")


def strictly(text: str) -> Any:
    """The value of JSON as the standard has it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"bare {constant}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a key twice"
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


# --- JSON -------------------------------------------------------------------------------------------------------


def test_a_report_is_strict_json(report: Report) -> None:
    found = strictly(report.to_json())
    assert list(found) == list(report.sections)
    assert found["config"]["model"] == "a llama"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_written_and_read(value: float) -> None:
    text = encode({"a": [value, {"b": value}], "c": 1.5})
    found = strictly(text)
    assert set(found["a"][0]) == {"non_finite"}
    back = decode(text)
    assert repr(back) == repr({"a": [value, {"b": value}], "c": 1.5})
    assert encode(back) == text


@pytest.mark.parametrize(
    "value", [0.1, 1e-300, 1e300, -0.0, 2**53 + 1, True, None, "", "é 中 </script> \u2028", [], {}]
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert repr(decode(encode({"value": value}))) == repr({"value": value})


def test_half_a_character_can_be_written() -> None:
    """File names need not be valid text."""
    text = encode({"name": "caf\udce9.txt"})
    assert text.encode().decode() == text
    assert decode(text) == {"name": "caf\udce9.txt"}


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), 1j])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=f"expected plain values, not {type(value).__name__}"):
        encode({"value": value})


@pytest.mark.parametrize("odd", [{"non_finite": "many"}, {"non_finite": ["NaN"]}, {"non_finite": "NaN", "and": 1}])
def test_what_only_looks_like_such_a_number_stays_what_it_is(odd: dict[str, Any]) -> None:
    assert decode(json.dumps(odd)) == odd


# --- files ------------------------------------------------------------------------------------------------------


def test_there_and_back(report: Report, tmp_path: Path) -> None:
    saved = report.save(tmp_path / "new" / "out", formats=["json"])
    assert saved == tmp_path / "new" / "out" / "report.json"
    for path in (saved, saved.parent, str(saved)):
        again = Report.load(path)
        assert again.to_json() == report.to_json()
        assert str(again) == str(report)
        assert repr(again) == repr(report)
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_again_replaces_and_a_file_in_the_way_is_said(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    report.save(tmp_path)
    assert (tmp_path / "report.json").read_text() == report.to_json()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StoreError, match=r"cannot write .*file"):
        report.save(tmp_path / "file")


NOT_REPORTS = {
    "nothing at all": "",
    "text": "hello",
    "half a report": '{"schema_version": 1, "executive_summary": {',
    "a list": "[]",
    "a number": "1",
    "a bare NaN": '{"schema_version": NaN}',
    "an infinity": '{"schema_version": -Infinity}',
    "too deep": "[" * 100_000,
    "bytes": b"\xff\xfe\x00",
    "a model": b"\x00" * 100,
}


@pytest.mark.parametrize("name", NOT_REPORTS)
def test_files_that_are_no_reports(name: str, tmp_path: Path) -> None:
    file, content = tmp_path / "some.json", NOT_REPORTS[name]
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=r"some\.json: ") as caught:
        Report.load(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(file)) + 200


@pytest.mark.parametrize("version", [0, 3, "1", None, True, 1.5, "x" * 10**6, [1]])
def test_another_schema_version_is_refused(report: Report, tmp_path: Path, version: Any) -> None:
    (tmp_path / "report.json").write_text(json.dumps({**json.loads(report.to_json()), "schema_version": version}))
    with pytest.raises(InputError, match=r"schema_version: got .*, expected a report of version 1 to 2$") as caught:
        Report.load(tmp_path)
    assert len(str(caught.value)) < len(str(tmp_path)) + 200


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_report_in_loose_json_is_refused(report: Report, tmp_path: Path, constant: str) -> None:
    """Another tool read it and wrote it again."""
    sections = json.loads(report.to_json())
    sections["executive_summary"]["risk_score"] = float(constant)
    (tmp_path / "report.json").write_text(json.dumps(sections))
    with pytest.raises(InputError, match=rf"report\.json: not a report \(a bare {constant} is not JSON\)"):
        Report.load(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: cannot be read \(No such file or directory\)$"):
        Report.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"report\.json: cannot be read"):
        Report.load(tmp_path)
    Path(tmp_path, "verdict.json").write_text("{}")
    with pytest.raises(InputError, match="the verdict of `locate`, not a report"):
        Report.load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("executive_summary",), None, "executive_summary: got NoneType, expected a table"),
        (("operator_analysis", "softmax", "kl"), 0.5, r"operator_analysis\.softmax\.kl: got float, expected a table"),
        (("operator_analysis", "softmax", "kl", "low"), "0", r"softmax\.kl\.low: got str, expected a number"),
        (("layer_analysis", "L0-2", "start_layer"), True, r"L0-2\.start_layer: got bool, expected a whole number"),
        (("layer_analysis", "L0-2", "degradation_interval"), [0.1], "got 1 entries, expected 2"),
        (("recommendations",), {}, "recommendations: got dict, expected a list"),
        (("cost", "forward_pass_equivalents"), 10**400, "got a number of 401 digits, expected a smaller one"),
        (("map", "cells", 3, "operator"), 7, r"map\.cells\[3\]\.operator: got int, expected text"),
    ],
)
def test_a_damaged_report_names_the_place(
    report: Report, tmp_path: Path, place: tuple[Any, ...], value: Any, message: str
) -> None:
    damaged = json.loads(report.to_json())
    at = damaged
    for part in place[:-1]:
        at = at[part]
    at[place[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(damaged))
    with pytest.raises(InputError, match=message):
        Report.load(tmp_path)


def test_a_section_that_is_missing_is_named(report: Report, tmp_path: Path) -> None:
    for name in report.sections:
        less = {key: value for key, value in json.loads(report.to_json()).items() if key != name}
        (tmp_path / "report.json").write_text(json.dumps(less))
        with pytest.raises(InputError, match=f"report.json: {name}: "):
            Report.load(tmp_path)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*way, key)
        yield from places(part, (*way, key))


def shortened(value: Any) -> Any:
    """The same with at most three entries of each list, and of each table of rows."""
    if isinstance(value, list):
        return [shortened(part) for part in value[:3]]
    if not isinstance(value, dict):
        return value
    rows = all(isinstance(part, dict) and not set(part) <= {"value", "low", "high"} for part in value.values())
    return {key: shortened(value[key]) for key in (list(value)[:3] if rows else value)}


def test_what_loads_can_be_shown(report: Report, tmp_path: Path) -> None:
    """Parts taken away or replaced at random: refused in one line, or shown; never a traceback."""
    whole = shortened(json.loads(report.to_json()))
    draw, messages = random.Random(25), []
    for way in draw.sample(list(places(whole)), 400):
        damaged = deepcopy(whole)
        at = damaged
        for part in way[:-1]:
            at = at[part]
        other = draw.choice([None, "odd", 7, -1.5, [], {}, {"a": 1}, [None], True, {"non_finite": "NaN"}, "gone"])
        if other == "gone" and isinstance(at, dict):
            del at[way[-1]]
        else:
            at[way[-1]] = other
        (tmp_path / "report.json").write_text(json.dumps(damaged))
        try:
            again = Report.load(tmp_path)
        except InputError as error:
            messages.append(str(error))
        else:
            assert all([str(again), str(again.map.top()), repr(again), again.failures is not None])
            assert len(again.map.to_pandas()) == len(again.map)
    assert 40 < len(messages) < 400
    assert not any("\n" in message for message in messages)


# --- the map as a table -----------------------------------------------------------------------------------------


def cell(layer: int | str, value: float, how: str = "predicted") -> dict[str, Any]:
    return {
        "layer": layer,
        "operator": "linear",
        "how": how,
        "kl": figure(value, value / 2, 2 * value),
    }


def test_the_top_of_the_map_is_its_largest_cells() -> None:
    table = MapTable([cell(0, 0.1), cell("head", 0.5, "measured"), cell(1, 0.3)])
    assert [row["layer"] for row in table.top(2)] == ["head", 1]
    assert [row["layer"] for row in table.top()] == ["head", 1, 0]
    assert [row["layer"] for row in table] == [0, "head", 1], "the table itself keeps its order"
    assert len(table.top(1)) == 1
    assert str(table.top(1)).splitlines() == [
        "layer  operator  KL, nats/token       how",
        "head   linear    0.500 [0.250, 1.00]  measured",
    ]


def test_the_map_of_a_report(report: Report) -> None:
    values = [row["kl"]["value"] for row in report.map.top(len(report.map))]
    assert len(values) == len(report.sections["map"]["cells"]) == len(report.map)
    assert values == sorted(values, reverse=True)


def test_the_map_as_a_data_frame(report: Report) -> None:
    frame = report.map.to_pandas()
    assert list(frame.columns) == ["layer", "operator", "how", "kl_value", "kl_low", "kl_high", "kl_stderr", "kl_n"]
    assert len(frame) == len(report.map)
    assert frame["kl_value"].max() == report.map.top(1).rows[0]["kl"]["value"]
    assert len(MapTable([]).to_pandas()) == 0


# --- the summary ------------------------------------------------------------------------------------------------


def test_the_summary_shows_figures_with_intervals(report: Report) -> None:
    lines = str(report).splitlines()
    assert lines[0].startswith(f"Risk: {report.risk} (score ")
    rows = {**report.sections["operator_analysis"], **report.sections["layer_analysis"]}
    first = next(line for line in lines if line.strip().startswith("1 "))
    name = first.split()[1]
    assert f" {written(rows[name]['kl'])} " in first
    low, high = rows[name]["degradation_interval"]
    assert f" {rows[name]['degradation']:.1%} [{100 * low:.1f}, {100 * high:.1f}] " in first
    assert rows[name]["degradation"] == max(row["degradation"] for row in rows.values())
    rank = report.sections["map"]["agreement"]["spearman"]
    assert any(f"Spearman {written(rank)} over" in line for line in lines)


def written(figure: dict[str, float]) -> str:
    """Three significant digits each."""
    value, low, high = (f"{figure[key]:#.3g}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def test_what_could_not_be_measured_is_shown_first(report: Report) -> None:
    sections = deepcopy(dict(report.sections))
    sections["operator_analysis"]["silu"] = failed_row("not finite at x")
    broken = Report(sections)
    assert broken.failures == {"silu": "not finite at x"}
    first = next(line for line in str(broken).splitlines() if line.strip().startswith("1 "))
    assert first.split() == ["1", "silu", "-", "-", "FAILED:", "not", "finite", "at", "x"]
    assert not report.failures


def test_an_accuracy_that_says_nothing_is_said_so() -> None:
    """Random weights, and noise without a map."""
    data = ns.open_data([tokens(rows=4)])
    spec = ns.DiagnosisSpec(level="layer", error_type="stuck_at", noise_scale=0.01)
    text = str(ns.diagnose(build("llama"), data, spec=spec))
    assert "accuracy lost is inconclusive, the KL ranks" in text
    assert "nan" not in text
