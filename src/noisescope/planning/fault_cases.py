"""Which faults a model should be tested with, from what its report found fragile.

    critical operator    bit flips in 1% of its operations      at most 5% degradation, 0.1% of predictions NaN
    avalanche window     stuck at zero for one decode step      at most 10%, recovered within 5 steps
    outlier channel      its values corrupted                   at most 15%, and the corruption is detected

Where the report has none of a family, the most sensitive ones stand in for them, and their case says so. An operation
is one call of an operator for one sequence; a struck one has one bit of one of its values inverted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import InputError, quoted
from ..report import Report
from ..report.layers import layer_of_module, parts
from ..report.rows import Sections, channel_statistics, operators, windows
from ..specs import OUTSIDE

__all__ = ["TEST_TYPES", "FaultCase", "fault_cases"]

FLIPS, OUTAGE, CORRUPTION = TEST_TYPES = ("bit_flip", "stuck_at_zero", "value_corruption")
MOST = 3
"""modules with outlier channels that get a case: the worst"""
STAND_INS = 2
"""cases of a family of which the report has none"""
MOST_BLOCKS = 100_000
DRAWS = 3000
"""the fewest among which no NaN at all shows a rate below 0.1%: the bound is 3 / draws"""


@dataclass(frozen=True)
class FaultCase:
    """One test: what is broken how, and what must still hold."""

    test_id: str
    component: str
    """operator, window, or module with its channel"""
    test_type: str
    parameters: Mapping[str, Any]
    acceptance_criteria: Mapping[str, Any]
    reason: str
    """what in the report asks for it"""
    stand_in: bool = False
    """True if the report has nothing that is fragile in this way, and this is only the most sensitive"""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def fault_cases(report: Report) -> tuple[FaultCase, ...]:
    """The cases for a report, in the order of the table above; an error where there is nothing to test."""
    sections = report.sections
    found = (*_operators(sections), *_windows(sections), *_channels(sections))
    if not found:
        level = sections["config"].get("level", "unknown")
        raise InputError(
            f"report: has no operator, window or channel to test (level {level}); diagnose with --level full"
        )
    return found


# --- operators --------------------------------------------------------------------------------------------------


def _blocks(sections: Sections) -> int:
    """How many there are; a file may say anything."""
    blocks: int = sections["coverage"]["layers"]
    if not 0 <= blocks <= MOST_BLOCKS:
        raise InputError(f"report: coverage.layers: got {blocks}, expected at most {MOST_BLOCKS}")
    return blocks


def _operators(sections: Sections) -> Iterator[FaultCase]:
    ranked = [place.name for place in operators(sections)]
    critical = [name for name in sections["executive_summary"]["critical_operators"] if name in ranked]
    for number, name in enumerate(critical or ranked[:STAND_INS], 1):
        yield FaultCase(
            f"operator-{number}",
            name,
            FLIPS,
            {
                "operators": None if name in OUTSIDE else [name],
                "layers": [name] if name in OUTSIDE else list(range(_blocks(sections))),
                "share_of_operations": 0.01,
                "draws": DRAWS,
                "seed": sections["config"].get("seed", 0),
            },
            {"max_degradation": 0.05, "max_nan_rate": 0.001},
            "critical operator" if critical else "no operator is critical; this is among the most sensitive",
            stand_in=not critical,
        )


# --- windows ----------------------------------------------------------------------------------------------------


def _windows(sections: Sections) -> Iterator[FaultCase]:
    ranked = sorted(windows(sections), key=lambda place: place.rank, reverse=True)
    if wrong := next((place for place in ranked if not 0 <= place.first <= place.last < _blocks(sections)), None):
        raise InputError(f"report: layer_analysis: {quoted(wrong.name)} is no window of {_blocks(sections)} layers")
    avalanches = [place for place in ranked if place.avalanche]
    apart: list[Any] = []
    for place in ranked:
        if len(apart) < STAND_INS and all(place.last < other.first or place.first > other.last for other in apart):
            apart.append(place)
    for number, place in enumerate(avalanches or apart, 1):
        yield FaultCase(
            f"window-{number}",
            place.name,
            OUTAGE,
            {"layers": list(range(place.first, place.last + 1)), "steps": 1},
            {"max_degradation": 0.10, "recovery_steps": 5},
            "avalanche window" if avalanches else "there is no avalanche window; this is among the most sensitive",
            stand_in=not avalanches,
        )


# --- channels ---------------------------------------------------------------------------------------------------


def _channels(sections: Sections) -> Iterator[FaultCase]:
    outliers = _outliers(sections)
    for number, (module, channel, reason) in enumerate(outliers or _sensitive(sections), 1):
        yield FaultCase(
            f"channel-{number}",
            f"{module} channel {channel}",
            CORRUPTION,
            {
                "module": module,
                "channel": channel,
                "kind": "noise",
                "magnitude": 1.0,
                "seed": sections["config"].get("seed", 0),
            },
            {"max_degradation": 0.15, "detection_required": True},
            reason,
            stand_in=not outliers,
        )


def _outliers(sections: Sections) -> list[tuple[str, int, str]]:
    """The worst channel of the worst modules."""
    rows = [(name, row) for name, row in channel_statistics(sections).items() if row["outlier_indices"]]
    found = []
    for name, row in sorted(rows, key=lambda item: -item[1]["max_ratio"])[:MOST]:
        ratio, channel = max(zip(row["outlier_ratios"], row["outlier_indices"], strict=True))
        found.append((name, channel, f"outlier channel, {ratio:.3g} times the median"))
    return found


def _sensitive(sections: Sections) -> list[tuple[str, int, str]]:
    """Where there are no outliers: the channels of linears in which most of the sensitivity of a layer lies."""
    cells = {(cell["layer"], cell["operator"]): cell["kl"]["value"] for cell in sections["map"].get("cells", ())}
    found = []
    for site, row in sections["map"].get("channels", {}).items():
        module, operator, _ = parts(site)
        kl = cells.get((layer_of_module(module), operator))
        if operator == "linear" and row["channels"] and kl is not None:
            found.append((kl * row["shares"][0], module, row["channels"][0]))
    reason = "there is no outlier channel; this is among the most sensitive"
    return [(module, channel, reason) for _, module, channel in sorted(found, reverse=True)[:STAND_INS]]
