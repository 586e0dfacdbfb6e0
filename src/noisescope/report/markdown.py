"""A report as Markdown, fit to paste into a pull request: what is fragile, what to do, the rest folded away.

Only what GitHub renders: tables, code spans and <details>. Every text that is not ours goes through `escaping`.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan

from .escaping import code, fence, prose
from .reading import Section, interval, number, part, sortable
from .rows import (
    Place,
    advice,
    counts,
    fragile,
    modules,
    next_steps,
    operators,
    places,
    subject,
    thresholds,
    unmeasured,
    windows,
)
from .verdict import verdict

__all__ = ["render_markdown"]

SHOWN = 8
FOLDED = 60
"""rows of a folded table: GitHub takes 65536 characters"""


def render_markdown(sections: Section) -> str:
    """The report as GitHub-flavoured Markdown; the same sections give the same text."""
    parts = [
        _headline(sections),
        _fragile(sections),
        _trust(sections),
        _avalanches(sections),
        _critical_noise(sections),
        _channels(sections),
        _advice(sections),
        _next_steps(sections),
        *_folded(sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# --- in view ----------------------------------------------------------------------------------------------------


def _headline(sections: Section) -> str:
    summary, cost = part(sections, "executive_summary"), part(sections, "cost")
    return (
        f"## noisescope: {prose(summary.get('overall_risk_level'))} risk\n\n"
        f"**{prose(verdict(sections))}** {counts(sections, code)}\n\n"
        f"{subject(sections, code)}; {number(cost.get('forward_pass_equivalents')):.0f} forward passes."
    )


def _fragile(sections: Section) -> str:
    rows = fragile(sections)
    if not rows:
        return ""
    more = f"\n\nThe worst {SHOWN} of {len(rows)} operators and windows." if len(rows) > SHOWN else ""
    return "### Where it is fragile\n\n" + _places(rows[:SHOWN], numbered=True) + more


def _trust(sections: Section) -> str:
    found, lines = part(sections, "map"), []
    agreement = part(found, "agreement")
    rank = interval(agreement.get("spearman"))
    if rank.finite:
        lines.append(
            f"The map ({len(found['cells'])} cells) agrees with injection: Spearman {rank} over "
            f"{number(agreement.get('checked')):.0f} checked cells, predicted/measured "
            f"{number(agreement.get('ratio_median')):.2f}."
        )
    if moved := part(found, "corrections"):
        factors = ", ".join(f"{code(name)} x{number(factor):.2f}" for name, factor in moved.items())
        lines.append(f"Corrected by what was measured: {factors}.")
    clean = part(part(sections, "metrics"), "clean")
    if clean and not clean.get("conclusive"):
        lines.append(
            f"Accuracy {interval(clean.get('accuracy')).value:.1%} is no better than chance "
            f"({number(clean.get('chance')):.1%}): accuracy lost is inconclusive, the KL ranks."
        )
    lines += [f"FAILED: {prose(name)}: {code(why)}." for name, why in unmeasured(sections)]
    return "\n".join(lines)


def _avalanches(sections: Section) -> str:
    rows = windows(sections)
    if not rows:
        return ""
    found = [row for row in rows if row.avalanche]
    least = number(part(sections, "config").get("avalanche_threshold"))
    over = "" if isnan(least) else f" above {least:.0%}"
    if not found:
        return f"Avalanche points: none{over} in {len(rows)} windows."
    words = (f"{code(row.name)} ({row.lost.percent}, {prose(row.severity)})" for row in found[:SHOWN])
    return f"Avalanche points: {', '.join(words)}; {len(found)} of {len(rows)} windows."


def _critical_noise(sections: Section) -> str:
    found = [row for row in thresholds(sections) if row.how == "measured"]
    if not found:
        return ""
    target = number(part(sections, "config").get("target_degradation"))
    share = "too much" if isnan(target) else f"{target:.0%}"
    words = ", ".join(f"{code(row.name)} {row}" for row in found[:SHOWN])
    return f"Critical noise, the smallest that costs {share} of the accuracy: {words}."


def _channels(sections: Section) -> str:
    rows = modules(sections)
    if not rows:
        return ""
    bad = sum(row.non_finite for row in rows)
    also = f" {bad} values were not finite and are left out." if bad else ""
    worst = [row for row in rows if row.outliers]
    if not worst:
        return f"Channels: no outliers in {len(rows)} modules.{also}"
    words = ", ".join(f"{code(row.name)} {row.max_ratio:.0f}x" for row in worst[:3])
    return f"Channels: outliers in {len(worst)} of {len(rows)} modules, the largest in {words}.{also}"


def _advice(sections: Section) -> str:
    lines: list[str] = []
    given = {""}
    for row in advice(sections)[: 2 * SHOWN]:
        lines.append(
            f"- **{prose(row.priority)}** {code(row.component)}: {prose(row.action)} ({prose(row.issue)})."
            f" <sub>{prose(row.evidence)}</sub>"
        )
        lines += ["", fence(row.command, indent="  "), ""] if row.command not in given else []
        given.add(row.command)
    return "\n".join(["### What to do", "", *lines]).rstrip() if lines else ""


def _next_steps(sections: Section) -> str:
    steps = [f"Next: {prose(why)}\n\n{fence(command)}" for command, why in next_steps(sections)]
    return "\n\n".join(["### Next steps", *steps]) if steps else ""


# --- folded -----------------------------------------------------------------------------------------------------


def _folded(sections: Section) -> Iterable[str]:
    """The long tables, each under its title."""
    metrics = part(sections, "metrics")
    together = [*places(part(metrics, "together"), "together"), *places(part(metrics, "groups"), "group")]
    yield _fold("Operators", _places(operators(sections)))
    yield _fold("Windows", _window_table(sections))
    yield _fold("All together, and groups of layers", _places(together))
    yield _fold("Map: the most fragile cells", _cells(sections))
    yield _fold("Critical noise", _threshold_table(sections))
    yield _fold("Outlier channels", _module_table(sections))
    yield _fold("Coverage and observer", _facts(part(sections, "coverage")))
    yield _fold("Environment and configuration", _facts({**part(sections, "environment"), **part(sections, "config")}))
    yield _fold("Thresholds and where they come from", _readings(sections))
    yield _fold("Cost, in forward passes", _facts(part(part(sections, "cost"), "by_stage")))


def _fold(title: str, body: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def _places(rows: Sequence[Place], *, numbered: bool = False) -> str:
    lines = [
        (*((str(at),) if numbered else ()), code(row.name), str(row.kl), row.lost.percent, _severity(row))
        for at, row in enumerate(rows, 1)
    ]
    return _table((*(("",) if numbered else ()), "place", "KL, nats/token", "accuracy lost", "severity"), lines)


def _window_table(sections: Section) -> str:
    lines = [
        (code(row.name), str(row.kl), row.lost.percent, str(row.amplification), _severity(row))
        for row in windows(sections)
    ]
    return _table(("window", "KL, nats/token", "accuracy lost", "KL / sum of its layers", "severity"), lines)


def _cells(sections: Section) -> str:
    cells = part(sections, "map").get("cells") or []
    worst = sorted(cells, key=lambda row: sortable(number(row["kl"]["value"])), reverse=True)[:20]
    lines = [(code(row["layer"]), code(row["operator"]), str(interval(row["kl"])), prose(row["how"])) for row in worst]
    return _table(("layer", "operator", "KL, nats/token", "how"), lines)


def _threshold_table(sections: Section) -> str:
    lines = [(code(row.name), str(row), prose(row.risk), prose(row.how)) for row in thresholds(sections)]
    return _table(("place", "critical noise scale", "risk", "how"), lines)


def _module_table(sections: Section) -> str:
    lines = [
        (code(row.name), f"{row.outliers} of {row.channels}", f"{row.max_ratio:.1f}", f"{sum(row.persistent)}")
        for row in modules(sections)
        if row.outliers
    ]
    return _table(("module", "outlier channels", "largest ratio", "persistent"), lines)


def _readings(sections: Section) -> str:
    lines = []
    for name, row in part(sections, "readings").items():
        if isinstance(row, Mapping):
            bands = row.get("bands")
            words = ", ".join(prose(band) for band in bands) if isinstance(bands, (list, tuple)) else ""
            lines.append((prose(name), prose(row.get("formula", "")), words, prose(row.get("source", ""))))
    return _table(("metric", "formula", "reading", "origin"), lines)


def _facts(table: Section) -> str:
    return _table(("what", "value"), list(_flat(table)))


def _flat(table: Section, before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield code(f"{before}{name}"), code(f"{value:.6g}" if isinstance(value, float) else value)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    rows = [head, ["---"] * len(head), *lines[:FOLDED]]
    more = f"\n\n{len(lines) - FOLDED} more in report.json." if len(lines) > FOLDED else ""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + more


def _severity(row: Place) -> str:
    if row.failed:
        return f"FAILED: {code(row.failed)}"
    return f"{prose(row.severity)}{', avalanche point' if row.avalanche else ''}"
