"""A report as Markdown, fit to paste into a pull request: what is fragile, what to do, the rest folded away.

Only what GitHub renders: tables, code spans and <details>. Every text that is not ours goes through `escaping`.
"""

from collections.abc import Iterable, Sequence

from .escaping import code, fence, prose
from .figures import figure, number
from .rows import (
    Place,
    Sections,
    advice,
    facts,
    fragile,
    modules,
    next_steps,
    operators,
    several,
    thresholds,
    windows,
    worst_cells,
)
from .sentences import avalanches, channels, counts, critical_noise, subject, trust, verdict

__all__ = ["fact_table", "fold", "markdown_table", "render_markdown"]

SHOWN = 8
FOLDED = 60
"""rows of a folded table: GitHub takes 65536 characters"""


def render_markdown(sections: Sections) -> str:
    """The report as GitHub-flavoured Markdown; the same sections give the same text."""
    parts = [
        _headline(sections),
        _fragile(sections),
        "\n".join(trust(sections, code)),
        avalanches(sections, code, most=SHOWN),
        critical_noise(sections, code, most=SHOWN),
        channels(sections, code),
        _advice(sections),
        _next_steps(sections),
        *_folded(sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# --- in view ----------------------------------------------------------------------------------------------------


def _headline(sections: Sections) -> str:
    summary, passes = sections["executive_summary"], number(sections["cost"]["forward_pass_equivalents"])
    return (
        f"## noisescope: {prose(summary['overall_risk_level'])} risk\n\n"
        f"**{verdict(sections, code)}** {counts(sections, code)}\n\n"
        f"{subject(sections, code)}; {passes} forward passes."
    )


def _fragile(sections: Sections) -> str:
    rows = fragile(sections)
    if not rows:
        return ""
    more = f"\n\nThe worst {SHOWN} of {len(rows)} operators and windows." if len(rows) > SHOWN else ""
    return "### Where it is fragile\n\n" + _places(rows[:SHOWN], numbered=True) + more


def _advice(sections: Sections) -> str:
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


def _next_steps(sections: Sections) -> str:
    steps = [f"Next: {prose(why)}\n\n{fence(command)}" for command, why in next_steps(sections)]
    return "\n\n".join(["### Next steps", *steps]) if steps else ""


# --- folded -----------------------------------------------------------------------------------------------------


def _folded(sections: Sections) -> Iterable[str]:
    """The long tables, each under its title."""
    yield fold("Operators", _places(operators(sections)))
    yield fold("Windows", _window_table(sections))
    yield fold("All together, and groups of layers", _places(several(sections)))
    yield fold("Map: the most fragile cells", _cells(sections))
    yield fold("Critical noise", _threshold_table(sections))
    yield fold("Outlier channels", _module_table(sections))
    yield fold("Proxies against sensitivity", _proxies(sections))
    yield fold("Coverage and observer", fact_table(sections["coverage"]))
    yield fold("Environment and configuration", fact_table({**sections["environment"], **sections["config"]}))
    yield fold("Thresholds and where they come from", _readings(sections))
    yield fold("Cost, in forward passes", fact_table(sections["cost"]["by_stage"]))


def fold(title: str, body: str) -> str:
    """What is shown when it is asked for; nothing for no body."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def _places(rows: Sequence[Place], *, numbered: bool = False) -> str:
    lines = [
        (*((str(at),) if numbered else ()), code(row.name), str(row.kl), row.lost.percent, _severity(row))
        for at, row in enumerate(rows, 1)
    ]
    return markdown_table((*(("",) if numbered else ()), "place", "KL, nats/token", "accuracy lost", "severity"), lines)


def _window_table(sections: Sections) -> str:
    lines = [
        (code(row.name), str(row.kl), row.lost.percent, str(row.amplification), _severity(row))
        for row in windows(sections)
    ]
    return markdown_table(("window", "KL, nats/token", "accuracy lost", "KL / sum of its layers", "severity"), lines)


def _cells(sections: Sections) -> str:
    lines = [
        (code(row["layer"]), code(row["operator"]), figure(row["kl"]), prose(row["how"]))
        for row in worst_cells(sections)[:20]
    ]
    return markdown_table(("layer", "operator", "KL, nats/token", "how"), lines)


def _threshold_table(sections: Sections) -> str:
    lines = [(code(row.name), str(row), prose(row.risk), prose(row.how)) for row in thresholds(sections)]
    return markdown_table(("place", "critical noise scale", "risk", "how"), lines)


def _module_table(sections: Sections) -> str:
    lines = [
        (code(row.name), f"{row.outliers} of {row.channels}", number(row.max_ratio), f"{sum(row.persistent)}")
        for row in modules(sections)
        if row.outliers
    ]
    return markdown_table(("module", "outlier channels", "largest ratio", "persistent"), lines)


def _proxies(sections: Sections) -> str:
    panel = sections["metrics"].get("agreement") or {}
    lines = [
        (code(row["name"]), prose(row["expected"]), figure(row["spearman"]), prose(row["verdict"]))
        for row in panel.get("proxies", ())
    ]
    return markdown_table(("proxy", "expected", "Spearman", "verdict"), lines)


def _readings(sections: Sections) -> str:
    lines = [
        (prose(name), prose(row["formula"]), ", ".join(map(prose, row["bands"])), prose(row["source"]))
        for name, row in sections["readings"].items()
    ]
    return markdown_table(("metric", "formula", "reading", "origin"), lines)


def fact_table(table: Sections) -> str:
    """Names and values of a part of a report."""
    return markdown_table(("what", "value"), [(code(name), code(value)) for name, value in facts(table)])


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]], *, rest: str = "more in report.json") -> str:
    """A table of cells that are Markdown already, as long as may be; nothing for no lines."""
    if not lines:
        return ""
    rows = [head, ["---"] * len(head), *lines[:FOLDED]]
    more = f"\n\n{len(lines) - FOLDED} {rest}." if len(lines) > FOLDED else ""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + more


def _severity(row: Place) -> str:
    if row.failed:
        return f"FAILED: {code(row.failed)}"
    return f"{prose(row.severity)}{', avalanche point' if row.avalanche else ''}"
