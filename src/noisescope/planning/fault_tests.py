"""Tests of faults as files: a table for people, a manifest, and a pytest file that runs what the manifest says.

fault_tests.csv     test_id, component, test_type, parameters, acceptance_criteria; the last two as JSON
fault_tests.json    the same and which model, on which data; the version of the format
test_faults.py      always the same few lines: names from a report are data, never code
"""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import store
from ..errors import InputError, unknown_name
from ..models import DEFAULT
from ..models.boundary import one_line
from ..report import Report
from ..report.shapes import LAYER, NUMBER, SAID, TEXT, TRUTH, WHOLE, Either, Listed, Record, Shape
from ..store.encoding import decode, encode, encode_line
from .fault_cases import CORRUPTION, FLIPS, OUTAGE, TEST_TYPES, FaultCase, fault_cases

__all__ = ["COLUMNS", "FILES", "FaultTests", "cases_as_csv", "plan_fault_tests"]

SCHEMA, VERSION = "noisescope fault tests", 1
LARGEST = 1 << 24
"""bytes of a manifest"""
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
        file = Path(path)
        try:
            found = decode(store.read_whole(file, LARGEST).decode("utf-8"))
        except OSError as error:
            raise InputError(f"{one_line(file)}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise InputError(f"{one_line(file)}: not a manifest ({' '.join(str(error).split())})") from None
        return cls(_checked(found, one_line(file)))

    def __str__(self) -> str:
        return "\n".join(f"{case.test_id}: {case.test_type} at {case.component} ({case.reason})" for case in self.cases)


def plan_fault_tests(
    report: Report | str | Path, *, model: str | None = None, data: str | None = None, home: str | Path = "."
) -> FaultTests:
    """The tests that a report asks for.

    Args:
        report: of `diagnose`, or its directory or file.
        model: hub id, directory or GGUF file of the report's model; None for as the report calls it, and empty for the
            default model.
        data: text to run the tests on, as `--data` takes it; None for the built-in one. Data with another task than
            the next token is left: degradation is then that of the built-in text.
        home: where the tests will be saved. Paths in the manifest are relative to it.
    """
    known = report if isinstance(report, Report) else Report.load(report)
    config, where = known.sections["config"], known.sections["environment"]
    name = config["model"] if model is None else model
    is_text = config["data"]["task"] == "next token"
    return FaultTests(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "model": {
                "name": config["model"],
                "load": None if name in ("", DEFAULT.name) else _from(home, name),
                "weights": config.get("weights"),
                "dtype": where.get("dtype"),
                "attention": where.get("attention"),
            },
            "data": {
                "load": _from(home, data) if data is not None and is_text else None,
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
    for case in cases:
        writer.writerow([_cell(case[column]) for column in COLUMNS])
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else encode_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _from(home: str | Path, name: str) -> str:
    """A path as it is called from that directory; any other name as it is."""
    return os.path.relpath(name, home) if os.path.exists(name) else name


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
_SHAPE = Record(
    model=Record(name=TEXT, load=_maybe_text, weights=_maybe_text, dtype=_maybe_text, attention=_maybe_text),
    data=Record(load=_maybe_text, rows=WHOLE, longest_row=Either(WHOLE, nothing=True), seed=WHOLE),
    cases=Listed(
        Record(
            test_id=SAID,
            component=TEXT,
            test_type=TEXT,
            parameters=Record(),
            acceptance_criteria=Record(),
            reason=TEXT,
            stand_in=TRUTH,
        )
    ),
)


def _checked(found: Any, file: str) -> Mapping[str, Any]:
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        got = one_line(repr(found.get("schema") if isinstance(found, dict) else type(found).__name__))[:60]
        raise InputError(f"{file}: schema: got {got}, expected {SCHEMA!r}")
    if type(found.get("version")) is not int or found["version"] != VERSION:
        raise InputError(f"{file}: version: got {one_line(repr(found.get('version')))[:40]}, expected {VERSION}")
    _SHAPE.check(found, file)
    for at, case in enumerate(found["cases"]):
        if (kind := case["test_type"]) not in TEST_TYPES:
            raise InputError(f"{file}: cases[{at}].{unknown_name('test_type', kind, TEST_TYPES)}")
        _PARAMETERS[kind].check(case["parameters"], f"{file}: cases[{at}].parameters")
        _CRITERIA[kind].check(case["acceptance_criteria"], f"{file}: cases[{at}].acceptance_criteria")
    return found
