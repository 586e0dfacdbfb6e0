"""`FaultInjectionTestGenerator`: cases of faults from a report, as the method documents spell it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .. import store
from ..planning import cases_as_csv, fault_cases
from ..report import Report
from ..report.schema import upgraded
from ..store.encoding import with_numbers

__all__ = ["FaultInjectionTestGenerator"]


class FaultInjectionTestGenerator:
    """Test cases for what a report found fragile; `plan_fault_tests` writes tests that run, too.

    report: a `Report`, its directory or file, or the plain dictionary of one, as `IntegratedDiagnostic` gives it and
    `json.load` reads it.
    """

    def __init__(self, report: Report | Mapping[str, Any] | str | Path) -> None:
        self.report = _opened(report)

    def generate_test_cases(self) -> list[dict[str, Any]]:
        """[{test_id, component, test_type, parameters, acceptance_criteria, ...}]."""
        return [case.as_json() for case in fault_cases(self.report)]

    def export_to_csv(self, cases: Iterable[Mapping[str, Any]], path: str | Path) -> Path:
        """Writes the documented columns to a file, which is replaced if it is there."""
        file, text = Path(path), cases_as_csv(cases)
        store.make_directory(file.parent)
        store.atomic_write(file, text.encode())
        return file


def _opened(report: object) -> Report:
    if isinstance(report, Report):
        return report
    if isinstance(report, (str, Path)):
        return Report.load(report)
    return Report(upgraded(with_numbers(report), "report"))
