"""JUnit XML, as pipelines read it: one test case for each thing that was checked.

A case that failed has a `failure`; one that came to no answer has an `error`, because it is not passed either.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import quoteattr

from ..errors import printable

__all__ = ["Case", "render_junit"]


@dataclass(frozen=True)
class Case:
    """One thing that was checked; `why` says what was wrong with it."""

    name: str
    place: str
    """where, which readers show as the class"""
    outcome: Literal["passed", "failure", "error"]
    why: str = ""


def render_junit(suite: str, cases: Iterable[Case]) -> str:
    """The cases as one suite; the same cases give the same text."""
    return "\n".join(_lines(suite, list(cases))) + "\n"


def _lines(suite: str, cases: Sequence[Case]) -> Iterator[str]:
    failed, unknown = (sum(case.outcome == outcome for case in cases) for outcome in ("failure", "error"))
    counts = f'tests="{len(cases)}" failures="{failed}" errors="{unknown}"'
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<testsuites name="noisescope" {counts}>'
    yield f"  <testsuite name={_attribute(suite)} {counts}>"
    for case in cases:
        head = f"<testcase name={_attribute(case.name)} classname={_attribute(case.place)}"
        if case.outcome == "passed":
            yield f"    {head}/>"
        else:
            yield f"    {head}>"
            yield f"      <{case.outcome} message={_attribute(case.why)}/>"
            yield "    </testcase>"
    yield "  </testsuite>"
    yield "</testsuites>"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))
