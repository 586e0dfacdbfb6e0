"""What a check says: passed, failed or inconclusive, why, and how small a change it would have seen.

checked  step-2000 against step-1000, 400 samples; differs: nothing
ok       linear     8.1% [6.9, 9.3] of accuracy lost, 7.9% in the baseline; would see 3.1 points
FAILED   softmax    ...
failed: 1 of 10 operators
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from .. import store
from ..report.check import render_check, save_check
from ..report.check.words import headline, operator_line
from ..report.junit import Case, render_junit
from .judging import OperatorRow, Outcome

__all__ = ["EXIT_CODES", "JUNIT", "TREND", "RobustnessCheck"]

EXIT_CODES: Mapping[Outcome, int] = {"passed": 0, "failed": 1, "inconclusive": 11}
JUNIT, TREND = "junit.xml", "trend.png"
_MARKS = {"passed": "ok     ", "failed": "FAILED ", "inconclusive": "unclear"}


@dataclass(frozen=True, eq=False)
class RobustnessCheck:
    """What a checkpoint was found to be, held against a baseline: print it, `save` it, or take its `exit_code`."""

    rows: tuple[OperatorRow, ...]
    sections: Mapping[str, Any] = field(repr=False)
    """everything, as plain values"""

    @property
    def outcome(self) -> Outcome:
        """`passed`, `failed` or `inconclusive`."""
        found: Outcome = self.sections["outcome"]
        return found

    @property
    def passed(self) -> bool:
        """Whether nothing failed and enough was seen to say so."""
        return self.outcome == "passed"

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 11 inconclusive."""
        return EXIT_CODES[self.outcome]

    @cached_property
    def max_degradation(self) -> float:
        """What noise on the most fragile operator costs; NaN if none could be measured."""
        return max((row.current for row in self.rows if isfinite(row.current)), default=float("nan"))

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same check gives the same text."""
        return render_check(self.sections, "md")

    def to_junit(self) -> str:
        """JUnit XML, one test case for each operator and one for what concerns all of them."""
        return render_junit("check", self._cases())

    def _cases(self) -> Iterator[Case]:
        doubts = self.sections["doubts"]
        yield Case("clean accuracy", "model", "error" if doubts else "passed", " ".join(doubts))
        for row in self.rows:
            outcome = {"passed": "passed", "failed": "failure", "inconclusive": "error"}[row.outcome]
            yield Case(f"noise on {row.operator}", row.operator, outcome, row.why)  # type: ignore[arg-type]

    def with_history(self, entries: Sequence[Mapping[str, Any]]) -> "RobustnessCheck":
        """The same check with the checkpoints so far, of which it is the last: the page draws them."""
        return RobustnessCheck(self.rows, {**self.sections, "history": [*entries]})

    def save(self, directory: str | Path) -> Path:
        """Writes junit.xml, check.md, check.html and check.json, with a history trend.png too; the page.

        Files that are there are replaced. Everything is rendered before anything is written.
        """
        others = {JUNIT: self.to_junit().encode()}
        if history := self.sections.get("history"):
            from ..report.check.trend import render_trend

            others[TREND] = render_trend(history, self.sections["rules"]["max_degradation"])
        home = store.make_directory(Path(directory))
        for name, data in others.items():
            store.atomic_write(home / name, data)
        return save_check(self.sections, home)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        width = max((len(row.operator) for row in self.rows), default=0)
        for row in self.sections["rows"]:
            yield f"{_MARKS[row['outcome']]} {row['operator']:<{width}}  {operator_line(row)}"
        yield headline(self.sections)
