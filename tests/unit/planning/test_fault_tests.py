"""Tests of faults as files: which cases there are, what is written, and what is refused."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
import planned
from hostile_strings import HOSTILE
from noisescope.errors import InputError
from noisescope.planning import FaultTests, fault_cases
from noisescope.planning.fault_tests import COLUMNS, PROGRAM
from noisescope.report import Report

pytestmark = pytest.mark.usefixtures("one_thread")


def by_id(report: Report) -> dict[str, Any]:
    return {case.test_id: case for case in fault_cases(report)}


def test_what_is_fragile_gets_the_documented_cases() -> None:
    found = by_id(planned.with_findings())
    assert list(found) == ["operator-1", "window-1", "channel-1"]
    assert not any(case.stand_in for case in found.values())
    flips, outage, corruption = found.values()
    assert (flips.component, flips.test_type, flips.reason) == ("softmax", "bit_flip", "critical operator")
    assert flips.parameters["share_of_operations"] == 0.01
    assert flips.acceptance_criteria == {"max_degradation": 0.05, "max_nan_rate": 0.001}
    assert 3 / flips.parameters["draws"] <= flips.acceptance_criteria["max_nan_rate"]
    assert (outage.component, outage.parameters) == ("L1-3", {"layers": [1, 2, 3], "steps": 1})
    assert outage.acceptance_criteria == {"max_degradation": 0.10, "recovery_steps": 5}
    assert corruption.component == "model.layers.4.mlp.down_proj channel 20"
    assert corruption.acceptance_criteria == {"max_degradation": 0.15, "detection_required": True}


def test_where_nothing_is_fragile_the_most_sensitive_stand_in_and_say_so() -> None:
    found = by_id(planned.report())
    assert list(found) == ["operator-1", "operator-2", "window-1", "window-2", "channel-1", "channel-2"]
    assert all(case.stand_in and "among the most sensitive" in case.reason for case in found.values())
    first, second = (set(found[name].parameters["layers"]) for name in ("window-1", "window-2"))
    assert not first & second
    sections = planned.report().sections
    worst = max(sections["operator_analysis"].items(), key=lambda item: item[1]["degradation"])
    assert found["operator-1"].component == worst[0]


def test_places_outside_the_blocks_are_cases_too() -> None:
    sections = planned.sections()
    sections["executive_summary"]["critical_operators"] = ["head", "linear"]
    head, linear, *_ = fault_cases(Report(sections))
    assert (head.parameters["operators"], head.parameters["layers"]) == (None, ["head"])
    assert (linear.parameters["operators"], linear.parameters["layers"]) == (["linear"], list(range(8)))


def test_a_report_with_nothing_to_test_is_refused() -> None:
    sections = planned.sections()
    sections |= {"operator_analysis": {}, "layer_analysis": {}, "channel_analysis": {}, "map": {}}
    with pytest.raises(InputError, match="has no operator, window or channel to test"):
        fault_cases(Report(sections))


# --- files ------------------------------------------------------------------------------------------------------


def test_a_report_is_taken_from_a_file_and_as_json_reads_it(tmp_path: Path) -> None:
    """JSON has no NaN: the file spells it as an object, which `json.load` leaves as it is."""
    sections = planned.sections()
    next(iter(sections["operator_analysis"].values()))["sensitivity_score"] = float("nan")
    home = planned.saved(tmp_path, Report(sections))
    text = (home / "report.json").read_text()
    assert '"non_finite"' in text
    cases = ns.FaultInjectionTestGenerator(Report(sections)).generate_test_cases()
    for given in (json.loads(text), home, str(home / "report.json")):
        assert ns.FaultInjectionTestGenerator(given).generate_test_cases() == cases


def test_a_case_that_lacks_a_column_is_one_line(tmp_path: Path) -> None:
    generator = ns.FaultInjectionTestGenerator(planned.report())
    for case, said in (({"test_id": "a"}, "no component"), (3, "got int")):
        with pytest.raises(InputError, match=rf"^cases\[0\]: {said}, expected a mapping with test_id component"):
            generator.export_to_csv([case], tmp_path / "cases.csv")  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())


def test_the_table_has_the_documented_columns(tmp_path: Path) -> None:
    generator = ns.FaultInjectionTestGenerator(dict(planned.with_findings().sections))
    cases = generator.generate_test_cases()
    rows = list(csv.DictReader(generator.export_to_csv(cases, tmp_path / "deep" / "cases.csv").open()))
    assert tuple(rows[0]) == COLUMNS == ("test_id", "component", "test_type", "parameters", "acceptance_criteria")
    for row, case in zip(rows, cases, strict=True):
        assert json.loads(row["parameters"]) == case["parameters"]
        assert json.loads(row["acceptance_criteria"]) == case["acceptance_criteria"]
    assert ns.FaultInjectionTestGenerator(planned.with_findings()).generate_test_cases() == cases
    with pytest.raises(InputError, match="schema_version: got none"):
        ns.FaultInjectionTestGenerator({"executive_summary": {}})


def test_tests_are_read_back_and_paths_are_those_from_their_directory(tmp_path: Path) -> None:
    home = tmp_path / "faults"
    tests = ns.plan_fault_tests(planned.report(), model=str(planned.MODEL), home=home)
    program = tests.save(home)
    assert program.name == "test_faults.py"
    back = FaultTests.load(home / "fault_tests.json")
    assert back.cases == tests.cases
    assert back.to_json() == tests.to_json()
    model = back.sections["model"]
    assert not Path(model["load"]).is_absolute()
    assert (home / model["load"]).resolve() == planned.MODEL.resolve()
    assert model["weights"] == planned.report().sections["config"]["weights"]


def test_a_text_that_is_named_is_that_of_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("a text")
    Path("q.jsonl").write_text('{"question": "2 + 2", "choices": ["4", "5"], "answer": 0}')
    sections = planned.sections()
    for task in ("next token", "multiple choice"):
        sections["config"]["data"]["task"] = task
        assert ns.plan_fault_tests(Report(sections), data="t.txt").sections["data"]["load"] == "t.txt"
        with pytest.raises(InputError, match=r"q.jsonl: has questions, expected text"):
            ns.plan_fault_tests(Report(sections), data="q.jsonl")


@pytest.mark.parametrize("text", [text for text in HOSTILE if text], ids=lambda text: str(HOSTILE.index(text)))
def test_names_are_data_and_never_code(text: str, tmp_path: Path) -> None:
    sections = planned.sections()
    row = planned.with_findings().sections["channel_analysis"]["per_layer"]["model.layers.4.mlp.down_proj"]
    sections["channel_analysis"]["per_layer"] = {text: row}
    sections["config"]["model"] = text
    tests = ns.plan_fault_tests(Report(sections), home=tmp_path)
    assert tests.save(tmp_path).read_text() == PROGRAM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fault_tests.csv", "fault_tests.json", "test_faults.py"]
    (case,) = (case for case in FaultTests.load(tmp_path / "fault_tests.json").cases if case.test_id == "channel-1")
    assert case.parameters["module"] == text
    cells = [cell for line in csv.reader((tmp_path / "fault_tests.csv").open(newline="")) for cell in line]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found | {"schema": "other"}, "schema: got 'other'"),
        (lambda found: found | {"version": 9}, "version: got 9, expected 1"),
        (lambda found: {**found, "cases": [{}]}, "cases[0].test_id: missing"),
        (lambda found: {**found, "cases": [{**found["cases"][0], "test_type": "bitflip"}]}, 'did you mean "bit_flip"?'),
        (lambda found: {**found, "cases": [{**found["cases"][0], "parameters": {}}]}, "parameters.operators: missing"),
        (lambda found: {**found, "cases": [{**found["cases"][0], "code": "x"}]}, 'got "code", expected nothing but'),
        (lambda found: {**found, "model": None}, "model: got NoneType, expected a table"),
    ],
)
def test_a_manifest_that_is_none_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    ns.plan_fault_tests(planned.report()).save(tmp_path)
    file = tmp_path / "fault_tests.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(InputError) as refused:
        FaultTests.load(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pytest_runs_what_was_written(tmp_path: Path) -> None:
    """As it is, beside its manifest, from any directory; a case that is not borne fails with one line."""
    home = tmp_path / "faults"
    ns.plan_fault_tests(planned.report(), model=str(planned.MODEL), home=home).save(home)
    manifest = json.loads((home / "fault_tests.json").read_text())
    lenient, strict = ({**case} for case in (manifest["cases"][1], manifest["cases"][2]))
    lenient["parameters"] |= {"draws": 40}
    lenient["acceptance_criteria"] = {"max_degradation": 1.0, "max_nan_rate": 1.0}
    strict["acceptance_criteria"] = {"max_degradation": -1.0, "recovery_steps": 5}
    manifest["cases"] = [lenient, strict]
    (home / "fault_tests.json").write_text(json.dumps(manifest))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", str(home / "test_faults.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "window-1, stuck_at_zero at" in done.stdout
    assert "beyond -100%" in done.stdout
    assert "Traceback" not in done.stdout
