"""The odd one out of several devices, where nobody knows which is healthy.

Every pair is compared. A device is the odd one if it diverges from all others while these agree among themselves. How
sure that is, is Bayes' rule over "nobody is off" and "this one is off", each as likely as the other before: a healthy
pair is called divergent with probability 3% at most (measured), and a pair with a faulty member agrees with probability
10% (faults below the floor).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, prod
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..traces import Trace
from .comparing import compare, opened
from .comparison import Comparison

__all__ = ["Vote", "compare_many"]

FALSE_ALARM, MISSED = 0.03, 0.1


@dataclass(frozen=True, eq=False)
class Vote:
    """What several traces say of one another."""

    names: tuple[str, ...]
    odd: str | None
    """the one that diverges from all others; None if there is none such"""
    confidence: float
    """probability of that answer, by the rule above"""
    pairs: Mapping[tuple[str, str], Comparison] = field(repr=False)

    @property
    def exit_code(self) -> int:
        """0 if all agree, 10 if one is odd, 11 if nobody can tell."""
        if self.odd is not None:
            return 10
        return 11 if any(pair.diverges or pair.outcome == "inconclusive" for pair in self.pairs.values()) else 0

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        apart = sum(pair.diverges for pair in self.pairs.values())
        if self.odd is not None:
            return f"odd one out: {self.odd} (confidence {100 * self.confidence:.1f} %)"
        if any(pair.outcome == "inconclusive" for pair in self.pairs.values()):
            return "cannot tell: none of the traces has a noise floor to judge by"
        if not apart:
            return f"all {len(self.names)} agree within the noise floor (confidence {100 * self.confidence:.1f} %)"
        return f"cannot tell: {apart} of {len(self.pairs)} pairs diverge, and no one of them explains it"

    def __str__(self) -> str:
        rows = [
            f" {first} and {second}: {'diverge' if found.diverges else found.outcome}{_where(found)}"
            for (first, second), found in self.pairs.items()
        ]
        return "\n".join([*rows, self.sentence])

    @property
    def sections(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "schema": "noisescope vote",
            "version": 1,
            "traces": list(self.names),
            "odd": self.odd,
            "confidence": self.confidence,
            "sentence": self.sentence,
            "pairs": [
                {
                    "first": first,
                    "second": second,
                    "outcome": found.outcome,
                    "excess": min(max((site.excess for site in found.sites), default=0.0), 1e300),
                    "site": found.first.site.name if found.first is not None else None,
                }
                for (first, second), found in self.pairs.items()
            ],
        }


def compare_many(traces: Sequence[Trace | str | Path], *, names: Mapping[str, str] | str | Path | None = None) -> Vote:
    """The odd one out of at least three traces; all pairs are judged by the floor of the first trace that has one."""
    if len(traces) < 3:
        raise InputError(f"compare: got {len(traces)} traces, expected at least three to vote")
    found = [opened(trace) for trace in traces]
    labels = _labels(found)
    donor = next((trace for trace in found if trace.head.floor is not None), None)
    judged = [trace if donor is None else _with_floor(trace, donor) for trace in found]
    pairs = {
        (labels[i], labels[j]): compare(judged[i], judged[j], names=names, fed=False)
        for i, j in combinations(range(len(found)), 2)
    }
    return Vote(tuple(labels), *_odd(labels, pairs), pairs)


def _with_floor(trace: Trace, donor: Trace) -> Trace:
    """A trace that is judged by another one's floor."""
    known = {(site.stage, site.run, site.name): site for site in donor.sites}
    sites = []
    for site in trace.sites:
        other = known.get((site.stage, site.run, site.name))
        floors, tolerances = (other.floors, other.tolerances) if other is not None else ((), ())
        sites.append(replace(site, floors=floors, tolerances=tolerances, own_tolerances=()))
    return replace(trace, head=replace(trace.head, floor=donor.head.floor, sites=tuple(sites)))


def _odd(labels: Sequence[str], pairs: Mapping[tuple[str, str], Comparison]) -> tuple[str | None, float]:
    likely: dict[str | None, float] = {
        odd: prod(_chance(found.diverges, odd in pair) for pair, found in pairs.items()) for odd in [None, *labels]
    }
    likely[None] *= len(labels)  # as likely as all others together
    best = max(likely, key=lambda odd: likely[odd])
    total = sum(likely.values())
    known = all(found.outcome != "inconclusive" for found in pairs.values())
    agrees = known and all(found.diverges == (best in pair) for pair, found in pairs.items())
    return (best if agrees else None), (likely[best] / total if agrees and total < inf else 0.0)


def _chance(diverges: bool, involved: bool) -> float:
    alarm = 1 - MISSED if involved else FALSE_ALARM
    return alarm if diverges else 1 - alarm


def _labels(traces: Sequence[Trace]) -> list[str]:
    names = [trace.name or f"trace {number}" for number, trace in enumerate(traces, 1)]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def _where(found: Comparison) -> str:
    return f" from {found.first.site.name} on" if found.first is not None else ""
