"""Two reports side by side, for a terminal, for a pull request, as JSON and as a page.

asked differently: noise_scale 0.05 -> 0.1; 3 rows significantly worse, 1 better, 47 not distinguishable
risk MODERATE (60) -> HIGH (130)

         row              KL before  after    factor             accuracy lost  change, points      p
 worse   operator head    0.494      0.9      1.82 [1.5, 2.2]    25% -> 31%     +6 [1, 11]          1e-5
...
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from ...store.encoding import encode
from ..escaping import code, prose, visible
from ..rows import Place
from .differences import Differences, RowDifference
from .significance import Shift

__all__ = ["RENDERERS", "render_text"]

_HEAD = ("", "row", "KL before", "after", "factor", "accuracy lost", "change, points", "p")
_DECIDED, _UNDECIDED = 24, 6
"""rows shown on a terminal: significant ones, and others"""
_MARGINS = "main.alone { max-width: 80rem; margin: 0 auto; padding: 2.5rem 1.5rem 3rem; }\n"
"""the page of a report has a column of contents in their place"""
_MOST = 60
"""rows of a Markdown table: GitHub takes 65536 characters"""


def render_text(found: Differences) -> str:
    """For a terminal: the verdict, what is significant, the largest of the rest, what differs between the runs."""
    decided, rest = _split(found)
    lines = [_cells(row) for row in (*decided[:_DECIDED], *rest[:_UNDECIDED])]
    more = max(0, len(decided) - _DECIDED), max(0, len(rest) - _UNDECIDED)
    parts = [
        "\n".join([visible(found.verdict, longest=400), *(visible(fact) for fact in found.headline)]),
        _aligned([_HEAD, *lines]) if lines else "",
        f"and {more[0]} more that are significant, {more[1]} that are not; all with --format md" if any(more) else "",
        "\n ".join(["what differs between the runs", *(visible(fact) for fact in found.facts)])
        if found.facts
        else "configuration and environment are the same",
        "\n".join(visible(line, longest=400) for line in _alone(found)),
        "\n".join(found.caveats),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(found: Differences) -> str:
    decided, rest = _split(found)
    parts = [
        f"## noisescope: {prose(found.verdict)}",
        "\n".join(f"- {prose(fact.name)}: {prose(fact.before)} -> {prose(fact.after)}" for fact in found.headline),
        _markdown_table(_HEAD, [_cells(row, code) for row in decided]),
        _folded(f"{len(rest)} rows that are not distinguishable", _HEAD, [_cells(row, code) for row in rest]),
        _folded(
            "What differs between the runs",
            ("what", "before", "after"),
            [(code(fact.name), code(fact.before), code(fact.after)) for fact in found.facts],
        ),
        "\n\n".join(prose(line) for line in _alone(found)),
        "\n\n".join(prose(line) for line in found.caveats),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _json(found: Differences) -> str:
    return encode(found.as_json())


def _html(found: Differences) -> str:
    from markupsafe import Markup

    from ..html import ASSETS, content_security_policy, environment
    from ..page.table import Table

    style = (ASSETS / "page.css").read_text(encoding="utf-8") + _MARGINS
    columns: dict[str, Any] = dict.fromkeys(_HEAD[1:], "figure") | {"row": "name", "KL before": "run", "after": "run"}
    decided, rest = ([_cells(row) for row in rows] for rows in _split(found))
    tables = [
        Table.of("significant", {"verdict": "text", **columns}, decided),
        Table.of("not distinguishable", {"verdict": "text", **columns}, rest),
    ]
    facts = [(fact.name, fact.before, fact.after) for fact in (*found.asked, *found.facts)]
    return (
        environment()
        .get_template("differences.html")
        .render(
            policy=content_security_policy([], [style]),
            style=Markup(style),
            verdict=found.verdict,
            headline=[(fact.name, f"{fact.before} -> {fact.after}") for fact in found.headline],
            tables=[table for table in tables if table.rows],
            facts=Table.of("what differs", {"what": "name", "before": "text", "after": "text"}, facts),
            remarks=[*_alone(found), *found.caveats],
        )
    )


RENDERERS: Mapping[str, Callable[[Differences], str]] = {"md": _markdown, "json": _json, "html": _html}
"""the formats of a comparison by name"""


# --- pieces -----------------------------------------------------------------------------------------------------


def _split(found: Differences) -> tuple[list[RowDifference], list[RowDifference]]:
    decided = [row for row in found.rows if row.verdict in ("worse", "better", "mixed")]
    return decided, list(found.rows[len(decided) :])


def _cells(row: RowDifference, name: Callable[[str], str] = visible) -> tuple[str, ...]:
    verdict = "" if row.verdict == "not distinguishable" else row.verdict
    return (
        verdict,
        f"{row.kind} {name(row.name)}",
        _value(row.before, name),
        _value(row.after, name),
        _shift(row.kl, 1, "{:.3g}"),
        _lost(row),
        _shift(row.lost, 100, "{:+.1f}"),
        f"{row.p:.2g}" if isfinite(row.p) else "-",
    )


def _value(place: Place, name: Callable[[str], str]) -> str:
    if place.failed:
        return f"FAILED: {name(place.failed)}"
    return f"{place.kl.value:.3g}" if isfinite(place.kl.value) else "-"


def _lost(row: RowDifference) -> str:
    if not row.before.conclusive or not row.after.conclusive:
        return "-"
    return f"{row.before.lost.value:.1%} -> {row.after.lost.value:.1%}"


def _shift(change: Shift, factor: float, shape: str) -> str:
    if not isfinite(change.effect):
        return "-"
    value, low, high = (shape.format(factor * end) for end in (change.effect, change.low, change.high))
    return f"{value} [{low}, {high}]"


def _alone(found: Differences) -> Iterable[str]:
    for where, rows in (("before", found.only_before), ("after", found.only_after)):
        for kind, names in rows.items():
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            yield f"only {where}: {kind} {', '.join(names[:6])}{more}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(" " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    rows = [head, ["---"] * len(head), *lines[:_MOST]]
    more = f"\n\n{len(lines) - _MOST} more." if len(lines) > _MOST else ""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + more


def _folded(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = _markdown_table(head, lines)
    return f"<details>\n<summary>{title}</summary>\n\n{table}\n\n</details>" if table else ""
