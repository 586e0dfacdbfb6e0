"""The verdict on a device: healthy, faulty or inconclusive, with its evidence. Prints as a person would say it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..report.verdict import render_verdict, render_verdict_summary, save_verdict
from ..specs import Layer

__all__ = ["EXIT_CODES", "Evidence", "Outcome", "Suspect", "Verdict"]

Outcome = Literal["healthy", "faulty", "inconclusive"]

EXIT_CODES: Mapping[Outcome, int] = {"healthy": 0, "faulty": 10, "inconclusive": 11}


@dataclass(frozen=True)
class Suspect:
    """One operator of one module that computes what no healthy device would."""

    name: str
    """of the first site that is off"""
    layer: Layer | None
    operator: str
    module: str
    kind: str
    stochastic: bool
    """gives other bits when asked again"""
    evidence: tuple[str, ...]
    """one sentence for each method that saw it"""
    calls: int = 1
    """calls of the operator that were off"""

    @property
    def where(self) -> str:
        """In words: layer 15, linear (mlp.down_proj)."""
        place = f"layer {self.layer}" if isinstance(self.layer, int) else str(self.layer or "outside the model")
        inside = self.module.split(f".{self.layer}.", 1)[-1] if isinstance(self.layer, int) else self.module
        return f"{place}, {self.operator} ({inside})" if inside else f"{place}, {self.operator}"


@dataclass(frozen=True)
class Evidence:
    """What one method found, in a sentence."""

    method: str
    sentence: str
    forwards: float
    """forward passes that it took, by multiplications"""


@dataclass(frozen=True)
class Verdict:
    """What `locate` found. `sites` are the suspects, the surest first; `evidence` has a line for each method."""

    outcome: Outcome
    sites: tuple[Suspect, ...]
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...] = ()
    """why it is inconclusive"""
    precision_modes: tuple[str, ...] = ()
    non_deterministic: tuple[str, ...] = ()
    """sites that give other bits every time, within rounding"""
    sections: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """everything, as plain values"""

    @property
    def healthy(self) -> bool:
        """True if nothing is wrong and nothing is missing."""
        return self.outcome == "healthy"

    @property
    def exit_code(self) -> int:
        """0 healthy, 10 faulty, 11 inconclusive."""
        return EXIT_CODES[self.outcome]

    def to_json(self) -> str:
        """Strict JSON; the same verdict gives the same text."""
        return render_verdict(self.sections, "json")

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same verdict gives the same text."""
        return render_verdict(self.sections, "md")

    def to_html(self) -> str:
        """One page that holds everything it shows, to be opened in a browser; the same verdict gives the same text."""
        return render_verdict(self.sections, "html")

    def save(self, directory: str | Path) -> Path:
        """Writes `verdict.md`, `verdict.html` and, last, `verdict.json` into a directory; the page, to open it.

        The directory is made if needed, and files that are there are replaced.
        """
        return save_verdict(self.sections, directory)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return render_verdict_summary(self.sections)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        told = [(found.method, found.sentence) for found in self.evidence]
        told += [("mode", mode) for mode in self.precision_modes]
        told += [("missing", line) for line in self.missing]
        width = max((len(label) for label, _ in told), default=0) + 2
        yield from (f"{label:<{width}}{line}" for label, line in told)
        yield from (f"not covered: {line}" for line in self.sections["verdict"]["not_covered"])
        yield self.sentence

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        return verdict_sentence(self.sections)


def verdict_sentence(sections: Mapping[str, Any]) -> str:
    """The verdict in one line, from the sections of a report."""
    found, suspects = sections["verdict"], sections["suspects"]
    checked, passes = sections["coverage"]["checked"], sections["cost"]["forward_pass_equivalents"]
    if found["outcome"] == "faulty":
        first = suspects[0]
        more = f"; {len(suspects) - 1} more" if len(suspects) > 1 else ""
        rate = found["false_alarm_rate"]
        sure = f"   false-alarm rate of this verdict < {rate:.0e}" if rate else ""
        return f"Verdict: FAULTY   {first['where']}, looks like {first['kind']}{more}{sure}"
    if found["outcome"] == "inconclusive":
        return f"Verdict: INCONCLUSIVE   {found['missing'][0] if found['missing'] else 'nothing was checked'}"
    worst = found["worst_ratio"]
    bound = "" if worst is None else f", worst {worst:.2g} of its rounding bound" if worst else ", all as on the host"
    return f"Verdict: HEALTHY   {checked} calls checked in {passes:.1f} passes{bound}"
