"""The published schema and the checks before a report is believed say the same; earlier versions load."""

import json
import random
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import noisescope as ns
from noisescope.errors import InputError
from noisescope.report import Report
from noisescope.report.schema import SCHEMA_VERSION, json_schema, upgraded
from noisescope.store.encoding import decode, encode
from odd_reports import module_row
from trained import fixture

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "report.schema.json"
GOLDEN = ROOT / "tests" / "golden"
REMOVED = object()

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["full", "operator", "layer", "channel"])
def sections(request: pytest.FixtureRequest) -> dict[str, Any]:
    model, tokenizer = fixture("llama")
    spec = ns.DiagnosisSpec(level=request.param, layers=(0, 1, "head"))
    report = ns.diagnose(model, spec=spec, tokenizer=tokenizer, n_samples=6, max_length=12, name="llama")
    return json.loads(report.to_json())


VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def is_valid(sections: Any) -> bool:
    return VALIDATOR.is_valid(sections)


def is_believed(sections: Any) -> bool:
    try:
        upgraded(decode(encode(sections)), "report.json")
    except InputError as error:
        return not re.fullmatch(r"report\.json: .+", str(error))  # one line that names the file, or it counts as wrong
    return True


def test_the_published_schema_is_this_one() -> None:
    assert PUBLISHED.read_text() == encode(json_schema()), "write encode(json_schema()) to docs/report.schema.json"


@pytest.mark.parametrize("section", ["config.layer_noise_scale", "environment.attention"])
def test_an_empty_table_is_no_number_and_no_text(sections: dict[str, Any], section: str) -> None:
    name, entry = section.split(".")
    changed = {**sections, name: {**sections[name], entry: {}}}
    assert not is_valid(changed)
    assert not is_believed(changed)


def test_real_reports_fit_both(sections: dict[str, Any]) -> None:
    jsonschema.validate(sections, json_schema())
    assert is_believed(sections)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a report."""
    parts = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    return [path] * bool(path) + [place for key, part in parts for place in places(part, (*path, key))]


def changed(sections: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = deepcopy(sections)
    home: Any = found
    for key in path[:-1]:
        home = home[key]
    if value is not REMOVED:
        home[path[-1]] = value
    else:
        del home[path[-1]]
    return found


PARALLEL = ("channels", "shares", "outlier_indices", "outlier_ratios", "severities", "kinds", "persistence")


def test_lists_that_belong_together_are_equally_long(sections: dict[str, Any]) -> None:
    found = deepcopy(sections)
    found["channel_analysis"] = {
        "summary": {"layers_with_outliers": 1, "total_outlier_channels": 2},
        "per_layer": {"x": module_row(20.0, 30.0)},
    }
    assert is_believed(found)
    for name in PARALLEL[2:]:
        assert not is_believed(changed(found, ("channel_analysis", "per_layer", "x", name), []))


@pytest.mark.parametrize("number", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_edited_reports_are_judged_alike(sections: dict[str, Any], number: int) -> None:
    """What the schema allows is loaded, and what it forbids is refused: one place at a time, anywhere."""
    choose = random.Random(1)
    everywhere = [path for path in places(sections) if path[0] != "schema_version"]
    refused = 0
    for path in choose.sample(everywhere, min(number, len(everywhere))):
        for value in (REMOVED, None, True, "text", 7, [], {}, {"a": 1}):
            edited = changed(sections, path, value)
            if not (
                {*path} & {*PARALLEL} and value in (REMOVED, [])
            ):  # JSON Schema cannot compare the lengths of two lists
                assert is_valid(edited) == is_believed(edited), (path, value)
            refused += not is_valid(edited)
    assert refused > 10


def test_version_1_loads() -> None:
    report = Report.load(GOLDEN / "report-v1.json")
    assert report.sections["schema_version"] == SCHEMA_VERSION
    assert json.loads((GOLDEN / "report-v1.json").read_text())["schema_version"] == 1
    jsonschema.validate(json.loads(report.to_json()), json_schema())
    assert len(report.map) == 22
    assert "Risk: LOW" in str(report)


@pytest.mark.parametrize("key", ["recommendations", "coverage", "map", "config"])
@pytest.mark.parametrize("value", [REMOVED, None, [1], "text", {"cells": 1, "layers": "x"}])
def test_an_edited_version_1_is_refused(key: str, value: Any) -> None:
    sections = changed(json.loads((GOLDEN / "report-v1.json").read_text()), (key,), value)
    assert not is_believed(sections)
