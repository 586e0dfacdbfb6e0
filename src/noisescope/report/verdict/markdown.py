"""A verdict as Markdown, fit to paste into a pull request: the verdict, the suspects, the methods, the rest folded.

Every text that is not ours goes through `escaping`.
"""

from collections.abc import Iterable, Sequence

from ..escaping import code, prose
from ..figures import number
from ..layers import label
from ..markdown import fact_table, fold, markdown_table
from ..rows import Sections
from .cells import cells
from .words import alarms, coverage, headline, method_sentence, on_host, outcome, subject, truth_line

__all__ = ["render_markdown"]

SHOWN = 8
REST = "more in verdict.json"


def render_markdown(sections: Sections) -> str:
    """The verdict as GitHub-flavoured Markdown; the same sections give the same text."""
    parts = [
        f"## noisescope: {prose(outcome(sections))}",
        f"**{headline(sections, prose)}** {alarms(sections)}".rstrip(),
        _subject(sections),
        _suspects(sections),
        _lines("### What is missing", sections["verdict"]["missing"]),
        _truth(sections),
        _methods(sections),
        _lines("### Precision modes", sections["precision_modes"]),
        *_folded(sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _subject(sections: Sections) -> str:
    told = ", ".join(f"{what} {value}" for what, value in subject(sections, code) if what != "model")
    model = dict(subject(sections, code))["model"]
    return f"{code(sections['config']['model'])}: {model}; {told}."


def _suspects(sections: Sections) -> str:
    rows = [
        (str(row["rank"]), prose(row["where"]), prose(row["kind"]), "<br>".join(map(prose, row["evidence"])))
        for row in sections["suspects"]
    ]
    found = markdown_table(("", "suspect", "looks like", "evidence"), rows, rest=REST)
    return f"### Suspects\n\n{found}" if found else ""


def _truth(sections: Sections) -> str:
    rows = [(code(row["fault"]), truth_line(row, prose)) for row in sections["truth"]]
    found = markdown_table(("simulated", "truth"), rows, rest=REST)
    return f"### Truth\n\n{found}" if found else ""


def _methods(sections: Sections) -> str:
    rows = [(code(row["method"]), prose(method_sentence(row)), number(row["forwards"])) for row in sections["evidence"]]
    found = markdown_table(("method", "found", "forward passes"), rows, rest=REST)
    return f"### Methods\n\n{found}" if found else ""


def _lines(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, "", *(f"- {prose(line)}" for line in lines)]) if lines else ""


# --- folded -----------------------------------------------------------------------------------------------------


def _folded(sections: Sections) -> Iterable[str]:
    """The long tables, each under its title."""
    yield fold("Largest errors", _largest(sections))
    yield fold("Layers ranked by their answer to noise", _ranking(sections))
    yield fold("Calls that come out otherwise every time", _names(sections["non_deterministic"]))
    for name, title in (("unjudged", "Calls without a known rounding bound"), ("hidden", "Kernels that are hidden")):
        yield fold(title, _names(sections["coverage"].get(name, ())))
    yield fold("Coverage", markdown_table(("what", "how many"), list(coverage(sections, prose))))
    yield fold("Cost, in forward passes", fact_table(sections["cost"]["by_stage"]))
    yield fold("Environment and configuration", fact_table({**sections["environment"], **sections["config"]}))


def _largest(sections: Sections) -> str:
    """The cells that are furthest from the host's arithmetic, if any is off it at all."""
    ranked = sorted((cell for cell in cells(sections) if cell.ratio), key=lambda cell: -(cell.ratio or 0.0))
    rows = [
        (code(label(cell.layer)), code(cell.operator), code(cell.worst["site"]), prose(on_host(cell.worst)))
        for cell in ranked[:SHOWN]
        if cell.worst is not None
    ]
    return markdown_table(("layer", "operator", "worst call", "error"), rows)


def _ranking(sections: Sections) -> str:
    rows = sections.get("srdd") or sections.get("fingerprint", ())
    head = [prose(name) for row in rows[:1] for name in row]
    return markdown_table(head, [[number(value) for value in row.values()] for row in rows], rest=REST)


def _names(names: Sequence[str]) -> str:
    return markdown_table(("site",), [(code(name),) for name in names], rest=REST)
