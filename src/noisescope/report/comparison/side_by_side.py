"""Two reports side by side, for a terminal, for a pull request, as JSON and as a page.

same model, same environment
asked differently: noise_scale 0.05 -> 0.1
3 rows significantly worse, 1 better, 47 not distinguishable
risk MODERATE (60) -> HIGH (130)

 row              verdict  KL before  after  factor           accuracy lost   change, points    p, adjusted
 operator head    worse    0.494      0.9    1.82 [1.5, 2.2]  25.0% -> 31.0%  +6.0 [1.0, 11.0]  1e-05
...
"""

from collections.abc import Callable, Mapping, Sequence

from ...store.encoding import encode
from ..escaping import code, prose, short, visible
from ..figures import in_ascii
from ..markdown import markdown_table
from ..summary import columns
from .differences import Differences, RowDifference
from .lines import HEAD, HEAD_OF_MAP, LONGEST, alone, cells
from .page import render_page

__all__ = ["RENDERERS", "render_text"]

_DECIDED, _UNDECIDED, _ON_MAP = 24, 6, 8
"""rows on a terminal: significant ones, others, significant ones of the map"""


def render_text(found: Differences) -> str:
    """For a terminal: what differs, the verdict, what is significant, the largest of the rest, how far to trust it."""
    on_map = [row for rows in found.on_map.values() for row in rows if row.significant]
    other = ["what else was set differently", *(f" {short(fact)}" for fact in found.facts.other)]
    parts = [
        _lines([*found.said_first, found.verdict, *map(str, found.headline)]),
        _text_table(HEAD, found.levels, _DECIDED),
        _text_table(("on the map", *HEAD_OF_MAP[1:]), on_map, _ON_MAP),
        "\n".join(other) if found.facts.other else "",
        _lines(list(alone(found))),
        _lines(found.caveats),
    ]
    return in_ascii("\n\n".join(part for part in parts if part)) + "\n"


def _markdown(found: Differences) -> str:
    decided, rest = _split(found.levels)
    facts = [(code(fact.name), code(fact.before), code(fact.after)) for fact in found.facts.all]
    parts = [
        f"## noisescope: {prose(' -> '.join(dict.fromkeys(found.models)))}",
        "\n".join(f"- {prose(line, longest=LONGEST)}" for line in found.said_first),
        f"**{prose(found.verdict, longest=LONGEST)}**",
        "\n".join(f"- {prose(fact.name)}: {prose(fact.before)} -> {prose(fact.after)}" for fact in found.headline),
        markdown_table(HEAD, [cells(row, code) for row in decided], rest="more"),
        _folded("not distinguishable", HEAD, [cells(row, code) for row in rest]),
        *(
            _folded(f"map: {name}", HEAD_OF_MAP, [cells(row, code) for row in rows])
            for name, rows in found.on_map.items()
        ),
        _folded("what differs between the runs", ("what", "before", "after"), facts),
        "\n\n".join(prose(line, longest=LONGEST) for line in alone(found)),
        "\n\n".join(prose(line, longest=LONGEST) for line in found.caveats),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _json(found: Differences) -> str:
    return encode(found.as_json())


RENDERERS: Mapping[str, Callable[[Differences], str]] = {"md": _markdown, "json": _json, "html": render_page}
"""the formats of a comparison by name"""


# --- pieces -----------------------------------------------------------------------------------------------------


def _split(rows: Sequence[RowDifference]) -> tuple[list[RowDifference], list[RowDifference]]:
    return [row for row in rows if row.significant], [row for row in rows if not row.significant]


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(visible(line, longest=LONGEST) for line in lines)


def _text_table(head: Sequence[str], rows: Sequence[RowDifference], most: int) -> str:
    if not rows:
        return ""
    decided, rest = _split(rows)
    lines = [head, *map(cells, (*decided[:most], *rest[:_UNDECIDED]))]
    table = columns(lines, before=" ")
    more = {"significant": len(decided) - most, "not significant": len(rest) - _UNDECIDED}
    kept = [f"{count} more that are {word}" for word, count in more.items() if count > 0]
    return f"{table}\n and {', '.join(kept)}; all with --format html" if kept else table


def _folded(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = markdown_table(head, lines, rest="more")
    return f"<details>\n<summary>{title} ({len(lines)})</summary>\n\n{table}\n\n</details>" if table else ""
