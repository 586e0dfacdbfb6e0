"""What a report says in words, the same in every format: the verdict it opens with, its subject, how far to trust it.

`name` is how a name from the model or the data is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from .figures import figure, number, plural, share
from .rows import Place, Sections, fragile, layer_scale, modules, thresholds, windows

__all__ = ["avalanches", "channels", "counts", "critical_noise", "noise_at", "subject", "trust", "verdict"]

Name: TypeAlias = Callable[[str], str]


def verdict(sections: Sections, name: Name = str) -> str:
    """What was found, in one sentence that names the worst place and its figure."""
    rows = fragile(sections)
    if not rows:
        return channels(sections, name) or "Nothing was measured."
    broken = [row.name for row in rows if row.broken]
    if broken:
        return f"Noise at {_names(broken, name)} makes the output non-finite: nothing else matters until that is fixed."
    measured = [row for row in rows if not row.failed]
    if not measured:
        return f"Nothing could be measured: {_names([row.name for row in rows], name)} failed."
    worst = measured[0]
    most = max(measured, key=lambda row: row.kl.value)
    moved = f"moves the output most at {name(most.name)}, by {most.kl} nats per token"
    if not worst.conclusive:
        return f"Accuracy on this data is no better than chance, so the KL ranks: {noise_at(most, sections)} {moved}."
    if worst.lost.low <= 0:
        return f"Nowhere is a loss of accuracy to be seen; {noise_at(most, sections)} {moved}."
    cost = f"{noise_at(worst, sections)} there costs {worst.lost.percent} of the accuracy"
    return f"Most fragile is {name(worst.name)}: {cost}."


def noise_at(row: Place, sections: Sections) -> str:
    """The noise that was put there."""
    scale = layer_scale(sections) if row.kind in ("window", "group") else sections["config"]["noise_scale"]
    return f"noise of scale {scale:g}"


def counts(sections: Sections, name: Name = str) -> str:
    """How much was found at each level, in one line."""
    summary, rows = sections["executive_summary"], windows(sections)
    found = [row.name for row in rows if row.avalanche]
    said = []
    if sections["operator_analysis"]:
        critical = summary["critical_operators"]
        said.append(f"critical: {_names(critical, name)}" if critical else "no operator is critical")
    if rows:
        said.append(f"avalanche at {_names(found, name)}" if found else "no avalanche point")
    if seen := modules(sections):
        said.append(_outliers(sum(row.outliers for row in seen), len(seen)))
    return f"Risk score {number(summary['risk_score'])}: {'; '.join(said) or 'nothing was looked at'}."


def subject(sections: Sections, name: Name = str) -> str:
    """What was looked at, and on what."""
    config, where = sections["config"], sections["environment"]
    facts = [plural(sections["coverage"]["layers"], "layer")]
    if "parameters" in where:
        facts.append(f"{number(where['parameters'] / 1e6)} M parameters")
    if "dtype" in where and "device" in where:
        facts.append(f"{name(where['dtype'])} on {name(where['device'])}")
    data = config["data"]
    rows = f"{plural(data['rows'], 'row')} of up to {plural(data['longest_row'], 'token')}"
    return f"{name(config['model'])}: {', '.join(facts)}; {name(data['name'])}, {rows}"


def trust(sections: Sections, name: Name = str) -> Iterator[str]:
    """How far the figures can be believed: the map against injection, the clean accuracy against chance, failures."""
    found = sections["map"]
    agreement = found.get("agreement") or {}
    if rank := agreement.get("spearman"):
        yield (
            f"The map ({plural(len(found['cells']), 'cell')}) agrees with injection: Spearman {figure(rank)} over "
            f"{plural(agreement['checked'], 'checked cell')}, predicted/measured {number(agreement['ratio_median'])}."
        )
    if moved := found.get("corrections"):
        factors = ", ".join(f"{name(operator)} x{number(factor)}" for operator, factor in moved.items())
        yield f"Unchecked cells were corrected by what was measured: {factors}."
    clean = sections["metrics"].get("clean")
    if clean and not clean["conclusive"]:
        yield (
            f"Accuracy {share(clean['accuracy']['value'])} is no better than chance ({share(clean['chance'])}): "
            "accuracy lost is inconclusive, the KL ranks."
        )
    for place, why in sections["metrics"].get("failed", {}).items():
        yield f"FAILED: {name(place)}: {name(why)}."


def avalanches(sections: Sections, name: Name = str, *, most: int | None = None) -> str:
    """Which windows lose so much at once."""
    rows = windows(sections)
    if not rows:
        return ""
    found = [row for row in rows if row.avalanche]
    if not found:
        least = sections["config"].get("avalanche_threshold")
        over = "" if least is None else f" above {100 * least:g}%"
        return f"Avalanche points: none{over} in {plural(len(rows), 'window')}."
    words = (f"{name(row.name)} ({row.lost.percent}, {name(row.severity)})" for row in found[:most])
    return f"Avalanche points: {', '.join(words)}; {len(found)} of {plural(len(rows), 'window')}."


def critical_noise(sections: Sections, name: Name = str, *, most: int | None = None) -> str:
    """The scales that were searched for by injection."""
    found = [row for row in thresholds(sections) if row.how == "measured"]
    if not found:
        return ""
    target = sections["config"].get("target_degradation")
    lost = "too much" if target is None else f"{100 * target:g}%"
    words = ", ".join(f"{name(row.name)} {row}" for row in found[:most])
    return f"Critical noise, the smallest that costs {lost} of the accuracy: {words}."


def channels(sections: Sections, name: Name = str) -> str:
    """How many channels stand out, and the one that does so most."""
    rows = modules(sections)
    if not rows:
        return ""
    bad = sum(row.non_finite for row in rows)
    also = f" {plural(bad, 'value was', 'values were')} not finite and left out." if bad else ""
    total = sum(row.outliers for row in rows)
    if not total:
        return f"No outlier channels in {plural(len(rows), 'module')}.{also}"
    most = f"the largest is {number(rows[0].max_ratio)} times the median, in {name(rows[0].name)}"
    return f"{_outliers(total, len(rows))}; {most}.{also}"


def _outliers(total: int, looked_at: int) -> str:
    return f"{plural(total, 'outlier channel')} in {plural(looked_at, 'module')}"


def _names(names: list[str], name: Name, most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name(entry) for entry in names[:most]) + more
