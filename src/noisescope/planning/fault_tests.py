"""Tests of faults as files: a table for people, a manifest, and a pytest file that runs what the manifest says.

fault_tests.csv     test_id, component, test_type, parameters, acceptance_criteria; the last two as JSON
fault_tests.json    the same and which model, on which data; the version of the format
test_faults.py      always the same few lines: names from a report are data, never code
"""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import store
from ..errors import InputError, quoted, unknown_name
from ..models import DEFAULT
from ..models.boundary import one_line
from ..report import Report
from ..report.documents import read_document
from ..report.shapes import LAYER, NUMBER, SAID, TEXT, TRUTH, WHOLE, Either, Listed, Record, Shape
from ..store.encoding import encode, encode_line
from .fault_cases import CORRUPTION, FLIPS, OUTAGE, TEST_TYPES, FaultCase, fault_cases
from .places import as_called_from

__all__ = ["COLUMNS", "FILES", "FaultTests", "cases_as_csv", "plan_fault_tests"]

SCHEMA, VERSION = "noisescope fault tests", 1
COLUMNS = ("test_id", "component", "test_type", "parameters", "acceptance_criteria")
FILES = {"csv": "fault_tests.csv", "py": "test_faults.py", "json": "fault_tests.json"}
"""format -> what its file is called, in the order in which they are written: the manifest last"""
PROGRAM = '''\
"""Faults that the model of the manifest has to bear, run on noisescope's simulator: `pytest test_faults.py`.

Made by `noisescope plan fault-tests`. What is tested, and on which model, is in fault_tests.json beside this file.
"""

from pathlib import Path

import pytest

from noisescope.planning.fault_running import FaultRunner

RUNNER = FaultRunner.load(Path(__file__).with_name("fault_tests.json"))


@pytest.mark.parametrize("test_id", RUNNER.test_ids)
def test_fault(test_id):
    result = RUNNER.run(test_id)
    if not result.passed:
        pytest.fail(result.sentence, pytrace=False)
'''


@dataclass(frozen=True, eq=False)
class FaultTests:
    """The cases for one model. `sections` is the manifest, as plain values."""

    sections: Mapping[str, Any] = field(repr=False)

    @property
    def cases(self) -> tuple[FaultCase, ...]:
        """The tests, in their order."""
        return tuple(FaultCase(**case) for case in self.sections["cases"])

    def to_json(self) -> str:
        """The manifest: strict JSON, the same tests give the same text."""
        return encode(self.sections)

    def to_csv(self) -> str:
        """The documented table."""
        return cases_as_csv(self.sections["cases"])

    def save(self, directory: str | Path) -> Path:
        """Writes `fault_tests.csv`, `test_faults.py` and, last, `fault_tests.json`; the file to give to pytest.

        The directory is made if needed, and files that are there are replaced.
        """
        rendered = {"csv": self.to_csv(), "py": PROGRAM, "json": self.to_json()}
        home = store.make_directory(Path(directory))
        for name, file in FILES.items():
            store.atomic_write(home / file, rendered[name].encode())
        return home / FILES["py"]

    @classmethod
    def load(cls, path: str | Path) -> "FaultTests":
        """The tests of a manifest; an error that names the place for one that is not."""
        found = read_document(Path(path), schema=SCHEMA, version=VERSION, shape=_SHAPE)
        for name in _OF_SOME_MODELS.keys() & found["model"].keys():
            _OF_SOME_MODELS[name].check(found["model"][name], f"{one_line(path)}: model.{name}")
        for at, case in enumerate(found["cases"]):
            _check(case, f"{one_line(path)}: cases[{at}]")
        return cls(found)

    def __str__(self) -> str:
        return "\n".join(f"{case.test_id}: {case.test_type} at {case.component} ({case.reason})" for case in self.cases)


def plan_fault_tests(
    report: Report | str | Path,
    *,
    model: str | None = None,
    data: str | None = None,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
    home: str | Path = ".",
) -> FaultTests:
    """The tests that a report asks for.

    Args:
        report: of `diagnose`, or its directory or file.
        model: hub id, directory or GGUF file of the report's model; None for as the report calls it, and empty for the
            default model.
        data: text to run the tests on, as `--data` takes it; None for the built-in one. Questions are refused:
            degradation is that of next tokens.
        tokenizer: where the model's tokenizer is, if it is not with the model.
        trust_remote_code: run Python code of the model when the tests load it.
        home: where the tests will be saved. Paths in the manifest are relative to it.
    """
    known = report if isinstance(report, Report) else Report.load(report)
    if data is not None:
        from ..measure.opening import require_text

        require_text(data)
    config, where = known.sections["config"], known.sections["environment"]
    name = config["model"] if model is None else model
    is_text = config["data"]["task"] == "next token"
    return FaultTests(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "model": {
                "name": config["model"],
                "load": None if name in ("", DEFAULT.name) else _relative(home, name),
                "weights": config.get("weights"),
                "dtype": where.get("dtype"),
                "attention": where.get("attention"),
                **({} if tokenizer is None else {"tokenizer": _relative(home, tokenizer)}),
                **({"trust_remote_code": True} if trust_remote_code else {}),
            },
            "data": {
                "load": None if data is None else _relative(home, data),
                "rows": config["data"]["rows"] if is_text else 50,
                "longest_row": config["data"]["longest_row"] if is_text else None,
                "seed": config.get("seed", 0),
            },
            "cases": [case.as_json() for case in fault_cases(known)],
        }
    )


def cases_as_csv(cases: Iterable[Mapping[str, Any]]) -> str:
    """The documented columns. A cell that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for at, case in enumerate(cases):
        if not isinstance(case, Mapping) or (missing := [column for column in COLUMNS if column not in case]):
            got = f"no {missing[0]}" if isinstance(case, Mapping) else f"got {type(case).__name__}"
            raise InputError(f"cases[{at}]: {got}, expected a mapping with {' '.join(COLUMNS)}")
        writer.writerow([_cell(case[column]) for column in COLUMNS])
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else encode_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _relative(home: str | Path, name: str) -> str:
    """Also an absolute path becomes one from there, so that a manifest holds none of one machine."""
    return as_called_from(home, os.path.relpath(name) if os.path.isabs(name) and os.path.exists(name) else name)


# --- what a manifest holds --------------------------------------------------------------------------------------

_maybe_text = Either(TEXT, nothing=True)
_PARAMETERS: dict[str, Shape] = {
    FLIPS: Record(
        operators=Either(Listed(TEXT), nothing=True),
        layers=Listed(LAYER),
        share_of_operations=NUMBER,
        draws=WHOLE,
        seed=WHOLE,
    ),
    OUTAGE: Record(layers=Listed(WHOLE), steps=WHOLE),
    CORRUPTION: Record(module=TEXT, channel=WHOLE, kind=TEXT, magnitude=NUMBER, seed=WHOLE),
}
_CRITERIA: dict[str, Shape] = {
    FLIPS: Record(max_degradation=NUMBER, max_nan_rate=NUMBER),
    OUTAGE: Record(max_degradation=NUMBER, recovery_steps=WHOLE),
    CORRUPTION: Record(max_degradation=NUMBER, detection_required=TRUTH),
}
_CASE = Record(
    test_id=SAID,
    component=TEXT,
    test_type=TEXT,
    parameters=Record(),
    acceptance_criteria=Record(),
    reason=TEXT,
    stand_in=TRUTH,
)
_OF_SOME_MODELS: dict[str, Shape] = {"tokenizer": _maybe_text, "trust_remote_code": TRUTH}
"""what is there only where it was asked for"""
_SHAPE = Record(
    model=Record(name=TEXT, load=_maybe_text, weights=_maybe_text, dtype=_maybe_text, attention=_maybe_text),
    data=Record(load=_maybe_text, rows=WHOLE, longest_row=Either(WHOLE, nothing=True), seed=WHOLE),
    cases=Listed(_CASE),
)


def _check(case: Mapping[str, Any], where: str) -> None:
    if (kind := case["test_type"]) not in TEST_TYPES:
        raise InputError(f"{where}: {unknown_name('test_type', kind, TEST_TYPES)}")
    _PARAMETERS[kind].check(case["parameters"], f"{where}.parameters")
    _CRITERIA[kind].check(case["acceptance_criteria"], f"{where}.acceptance_criteria")
    if unknown := sorted(set(case) - {part.name for part in fields(FaultCase)}):
        raise InputError(f"{where}: got {quoted(unknown[0])}, expected nothing but {' '.join(_CASE.parts)}")
