"""What a check says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeAlias

from ..figures import NOTHING, in_ascii, plural, share
from ..rows import Sections

__all__ = ["advice", "headline", "operator_line", "outcome", "points", "rules", "sight", "subject", "warning"]

Name: TypeAlias = Callable[[str], str]


def outcome(sections: Sections) -> str:
    """PASSED, FAILED or INCONCLUSIVE."""
    return str(sections["outcome"]).upper()


def headline(sections: Sections, name: Name = str) -> str:
    """The answer in a sentence."""
    rows, told = sections["rows"], outcome(sections)
    if sections["doubts"]:
        return f"{told}: {' '.join(sections['doubts'])}"
    if sections["outcome"] == "passed":
        return f"{told}: {_held(sections)}{_seen(sections)}."
    named = [name(row["operator"]) for row in rows if row["outcome"] == sections["outcome"]]
    what = "more is lost than allowed to noise on" if sections["outcome"] == "failed" else "too little is known of"
    return f"{told}: {what} {', '.join(named)}{_seen(sections)}."


def _held(sections: Sections) -> str:
    count = plural(len(sections["rows"]), "operator")
    limit = sections["rules"]["max_degradation"]
    if sections["baseline"]["kind"] == "report":
        return f"none of {count} costs more than {share(limit)} of accuracy"
    within = "" if limit is None else f", and none costs more than {share(limit)} of accuracy"
    return f"none of {count} got more than 20% and one point worse{within}"


def _seen(sections: Sections) -> str:
    least, excess = sections["rules"]["detectable"], sections["rules"].get("detectable_excess")
    if least is None and excess is None:
        return ""
    what = f"a change of {points(least)}" if least is not None else f"an excess of {points(excess)} over the limit"
    return f"; {what} would be seen in 4 of 5 cases, whichever operator"


def operator_line(row: Mapping[str, Any]) -> str:
    """What became of an operator, for a terminal."""
    if row["why"]:
        return str(row["why"])
    lost = f"{share(row['current'], row['current_interval'])} of accuracy lost"
    if row["baseline"] is None:
        return in_ascii(f"{lost}; sees {sight(row)}")
    change = f"{points(row['change'], row['change_interval'])} more"
    return in_ascii(f"{lost}, {share(row['baseline'])} in the baseline: {change}; sees {points(row['detectable'])}")


def points(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """A difference of two shares, in points."""
    if value is None:
        return NOTHING
    if not isfinite(value):
        return "no number of points"
    ends = "" if interval is None else f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"
    return f"{100 * value:.1f}{ends} points"


def sight(row: Mapping[str, Any]) -> str:
    """The smallest change that would be seen; with a report, the smallest excess over the limit."""
    if row["detectable"] is not None or row.get("detectable_excess") is None:
        return points(row["detectable"])
    return f"{points(row['detectable_excess'])} over the limit"


def subject(sections: Sections, name: Name = str) -> str:
    """What was held against what, on what, and at which cost."""
    asked, data = sections["question"], sections["data"]
    differs = f"; differs: {', '.join(map(name, sections['differs']))}" if sections["differs"] else ""
    return (
        f"{name(sections['model'])} against {name(sections['baseline']['model'])}: {name(str(asked['error_type']))} "
        f"noise of scale {asked['noise_scale']:g} on {name(data['name'])}, {plural(data['samples'], 'sample')} "
        f"({plural(data['predictions'], 'prediction')}), {sections['cost']:.1f} forward passes{differs}"
    )


def warning(sections: Sections) -> str:
    """What the check does not claim; nothing where it claims all it can."""
    if sections["baseline"]["kind"] != "report":
        return ""
    return (
        "The baseline is a report, which has no figures by sequence: only the limit is tested, and whether an operator "
        "got worse is not. Make a baseline with `noisescope check MODEL --save-baseline FILE` for that."
    )


def advice(sections: Sections) -> str:
    """What to do for an answer; nothing where there is one."""
    if sections["outcome"] != "inconclusive" or sections["doubts"]:
        return ""
    most = max((row["samples"] for row in sections["rows"]), default=0)
    if not most:
        return ""
    return (
        f"About {most:,} samples would do: make the baseline anew with `--n-samples {most}`, or look for larger "
        "changes with `--resolution`."
    )


def rules(sections: Sections) -> str:
    """How it was judged."""
    held, limit = sections["rules"], sections["rules"]["max_degradation"]
    limited = "" if limit is None else f", or if noise on it costs more than {share(limit)} of accuracy"
    worse = (
        "An operator fails if noise on it costs more than 20% and more than one point more than in the baseline, and "
        f"is more than one point worse by a test paired by sequence{limited}."
        if sections["baseline"]["kind"] != "report"
        else f"An operator fails if noise on it costs more than {share(limit)} of accuracy."
    )
    blunt = (
        f"a change of {points(held['resolution'])}, or of 30% of what the operator cost if that is more,"
        if sections["baseline"]["kind"] != "report"
        else "an operator is above the limit and not significantly so, or its interval reaches over the limit and an "
        f"excess of {points(held['resolution'])}"
    )
    return (
        f"{worse} {plural(held['tests'], 'test')} with Holm's correction: a checkpoint that is as good fails in at "
        f"most {100 * held['level']:g} of 100 checks. Without failures a check is inconclusive, and not passed, where "
        f"{blunt} would not be seen in {100 * held['power']:g} of 100 checks."
    )
