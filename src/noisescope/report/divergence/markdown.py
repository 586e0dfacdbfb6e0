"""A comparison as Markdown, fit to paste into a pull request: the verdict, what differs, layers, the worst sites.

Every text that is not ours goes through `escaping`.
"""

from collections.abc import Iterable, Sequence

from ..escaping import code, prose
from ..figures import number, share
from ..markdown import fold, markdown_table
from ..page.table import Table
from ..rows import Sections
from . import tables
from .sites import label, measured, percent, times, worst
from .words import advice, blame, headline, layer_word, outcome, sides, subject

__all__ = ["render_markdown"]

SITES = 20
REST = "more in comparison.json"


def render_markdown(sections: Sections) -> str:
    """The comparison as GitHub-flavoured Markdown; the same sections give the same text."""
    layers = _layers(sections)
    diverges = sections["verdict"]["outcome"] == "diverges"
    parts = [
        f"## noisescope: {prose(outcome(sections))}",
        " ".join(
            part for part in (f"**{headline(sections, prose)}**", blame(sections, prose), advice(sections)) if part
        ),
        _subject(sections),
        _titled("### What differs", _differences(sections)),
        _titled("### Source or amplifier", layers) if diverges else fold("Layers", layers),
        _titled("### Fix first", _repairs(sections)),
        _titled("### Sites furthest off", _sites(sections)),
        *_folded(sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _titled(title: str, body: str) -> str:
    return f"{title}\n\n{body}" if body else ""


def _subject(sections: Sections) -> str:
    told = [f"{what} {how}" for what, how in subject(sections, code) if what not in ("differs", "tolerated")]
    return f"{code(sections['traces']['reference']['model'])}: {'; '.join(told)}."


def _differences(sections: Sections) -> str:
    rows = [(code(row["field"]), *map(code, sides(row))) for row in sections["differences"]]
    return markdown_table(("what", "reference", "suspect"), rows, rest=REST)


def _layers(sections: Sections) -> str:
    rows = [
        (
            code(label(row["layer"])),
            number(row["added"]),
            number(row["inherited"]),
            number(row["gain"]),
            percent(row["mape"]),
            f"**{prose(row['word'])}**" if row["role"] == "source" else prose(layer_word(sections, row)),
        )
        for row in sections["layers"]
    ]
    return markdown_table(("layer", "added by itself", "inherited", "gain", "MAPE", "verdict"), rows, rest=REST)


def _repairs(sections: Sections) -> str:
    rows = [
        (
            code(label(row["layer"])),
            code(row["operator"]),
            share(row["share"]),
            number(row["risk_kl"]),
            code(row["site"]),
        )
        for row in sections["repairs"]
    ]
    head = ("layer", "operator", "share of the risk", "predicted KL, nats per token", "site")
    return markdown_table(head, rows, rest=REST)


def _sites(sections: Sections) -> str:
    rows = [
        (
            code(site["name"]) + ("" if site["stage"] == "prefill" else f", {prose(site['stage'])}"),
            measured(site, "relative_error"),
            measured(site, "sqnr_db"),
            number(site["floor"]),
            number(site["tolerance"]),
            prose(times(site)),
        )
        for site in worst(sections["sites"])[:SITES]
    ]
    return markdown_table(
        ("site", "relative error", "SQNR, dB", "noise floor", "tolerance", "so it is"), rows, rest=REST
    )


# --- folded -----------------------------------------------------------------------------------------------------


def _folded(sections: Sections) -> Iterable[str]:
    """The long tables, each under its title."""
    for table in tables.missing(sections):
        yield fold(table.caption, _table(table))
    yield fold("Traces", _table(tables.traces(sections)))
    yield fold("Environments", _table(tables.environments(sections)))


def _table(table: Table) -> str:
    rows: Sequence[Sequence[str]] = [[code(text) for text in row] for row in table.rows]
    return markdown_table([column.label for column in table.columns], rows, rest=REST)
