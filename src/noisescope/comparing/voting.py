"""The odd one out of several devices, where nobody knows which is healthy.

Every pair is compared. A device is the odd one if it diverges from all others while these agree among themselves. How
sure that is, is Bayes' rule over "nobody is off" and "one is off", each as likely as the other before, and each device
as likely as the next:

    P(odd) = (1 - missed) / n / ((1 - missed) / n + false alarms)

Comparisons that share a device are not independent: one whose arithmetic is unusual may be taken for divergent by all
others at once. So the chance that all of them do is taken to be that of one, and more devices do not make it surer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..report.vote import save_vote
from ..report.vote.words import advice, headline, pair_word
from ..traces import Trace
from .comparing import compare_traces, opened
from .comparison import Comparison
from .names import Names, renamed
from .sections import trace_section

__all__ = ["Vote", "compare_many"]

FALSE_ALARM = 0.0072
"""of a comparison of two healthy devices, at most: none in 421 (benchmarks/compare/honest.json)"""
MISSED = 0.455
"""of faults down to a hundredth of their documented size that change a bit and stay below the floor: 207 of 455
(benchmarks/compare/results.json)"""


@dataclass(frozen=True, eq=False)
class Vote:
    """What several traces say of one another."""

    names: tuple[str, ...]
    odd: str | None
    """the one that diverges from all others; None if there is none such"""
    confidence: float | None
    """probability that it is off, by the rule above; None without an odd one"""
    pairs: Mapping[tuple[str, str], Comparison] = field(repr=False)
    sections: Mapping[str, Any] = field(repr=False)
    """everything, as plain values"""

    @property
    def outcome(self) -> str:
        """`all agree`, `odd one out` or `cannot tell`."""
        return str(self.sections["outcome"])

    @property
    def exit_code(self) -> int:
        """0 if all agree, 10 if one is odd, 11 if nobody can tell."""
        return {"all agree": 0, "odd one out": 10}.get(self.outcome, 11)

    def save(self, directory: str | Path) -> Path:
        """Writes vote.html, vote.md and vote.json; the path of the page. Files that are there are replaced."""
        return save_vote(self.sections, directory)

    def __str__(self) -> str:
        rows = [
            f" {pair['first']} and {pair['second']}: {pair_word(pair)}"
            + (f" from {pair['site']} on" if pair["site"] else "")
            for pair in self.sections["pairs"]
        ]
        return "\n".join(filter(None, [*rows, headline(self.sections), advice(self.sections)]))


def compare_many(traces: Sequence[Trace | str | Path], *, names: Names | None = None) -> Vote:
    """The odd one out of at least three traces; all pairs are judged by the floor of the first trace that has one."""
    if len(traces) < 3:
        raise InputError(f"compare: got {len(traces)} traces, expected at least three to vote")
    if len({id(trace) if isinstance(trace, Trace) else Path(trace).resolve() for trace in traces}) < len(traces):
        raise InputError("compare: the same trace is given twice; each device has one vote")
    first, *others = (opened(trace) for trace in traces)
    structure = first.head.structure
    found = [first] + [renamed(one, names) if names and one.head.structure != structure else one for one in others]
    labels = _labels(found)
    donor = next((trace for trace in found if trace.head.floor is not None), None)
    judged = [trace if donor is None else _with_floor(trace, donor) for trace in found]
    pairs = {
        (labels[i], labels[j]): compare_traces(judged[i], judged[j], renamed=bool(names), report=None, fed=False)
        for i, j in combinations(range(len(found)), 2)
    }
    odd = _odd(labels, pairs)
    confidence = _confidence(len(labels)) if odd is not None else None
    sections = {
        "schema": "noisescope vote",
        "version": 2,
        "model": found[0].head.model,
        "outcome": _outcome(odd, pairs),
        "odd": odd,
        "confidence": confidence,
        "traces": [{**trace_section(trace), "file": label} for label, trace in zip(labels, found, strict=True)],
        "pairs": [_pair(*pair, comparison) for pair, comparison in pairs.items()],
    }
    return Vote(tuple(labels), odd, confidence, pairs, sections)


def _with_floor(trace: Trace, donor: Trace) -> Trace:
    """A trace that is judged by another one's floor."""
    known = {(site.stage, site.run, site.name): site for site in donor.sites}
    sites = []
    for site in trace.sites:
        other = known.get((site.stage, site.run, site.name))
        floors, tolerances = (other.floors, other.tolerances) if other is not None else ((), ())
        sites.append(replace(site, floors=floors, tolerances=tolerances, own_tolerances=()))
    return replace(trace, head=replace(trace.head, floor=donor.head.floor, sites=tuple(sites)))


def _odd(labels: Sequence[str], pairs: Mapping[tuple[str, str], Comparison]) -> str | None:
    if any(found.outcome == "inconclusive" for found in pairs.values()):
        return None
    alone = (label for label in labels if all(found.diverges == (label in pair) for pair, found in pairs.items()))
    return next(alone, None)


def _confidence(devices: int) -> float:
    found = (1 - MISSED) / devices
    return found / (found + FALSE_ALARM)


def _outcome(odd: str | None, pairs: Mapping[tuple[str, str], Comparison]) -> str:
    if odd is not None:
        return "odd one out"
    agree = all(found.outcome == "within the noise floor" for found in pairs.values())
    return "all agree" if agree else "cannot tell"


def _pair(first: str, second: str, found: Comparison) -> dict[str, Any]:
    excess = max((site.excess for site in found.sites), default=0.0)
    return {
        "first": first,
        "second": second,
        "outcome": found.outcome,
        "same_bits": all(site.same_bits for site in found.sites),
        "excess": excess if excess < inf else None,
        "site": found.first.site.name if found.first is not None else None,
    }


def _labels(traces: Sequence[Trace]) -> list[str]:
    names = [trace.name or f"trace {number}" for number, trace in enumerate(traces, 1)]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]
