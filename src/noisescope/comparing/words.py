"""A comparison on the screen.

same model, same tokens; differs: device (cuda -> npu), torch (2.13 -> 2.12)
first divergence   model.layers.9.self_attn.softmax.0.forward   SQNR 31 dB, noise floor 52 dB
 layer   added by itself   inherited   gain   MAPE     verdict
 L9      .0042             .0000       -      1.9 %    SOURCE
 L10     .0001             .0042       1.1    2.1 %    amplifies
fix first: L9 softmax (divergence x sensitivity is 61 % of the total)
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, log10
from typing import Any

from ..report.divergence.sites import site_at
from ..report.divergence.words import advice

__all__ = ["lines", "verdict_line"]

Sections = Mapping[str, Any]
_SHOWN = 12
"""layers of the table on the screen; the report has all"""


def lines(sections: Sections) -> Iterator[str]:
    """What is shown, line by line."""
    yield differs_line(sections)
    yield verdict_line(sections)
    if sections["verdict"]["outcome"] == "diverges" and sections["layers"]:
        yield from _table(sections)
        yield from _repairs(sections)
    if told := advice(sections):
        yield told
    yield from _missing(sections["missing"])


def differs_line(sections: Sections) -> str:
    """What is the same, and what is being compared."""
    told = ", ".join(
        f"{row['field']} ({_said(row['reference'])} -> {_said(row['suspect'])})" for row in sections["differences"]
    )
    return f"same model, same tokens; differs: {told or 'nothing'}"


def verdict_line(sections: Sections) -> str:
    """The verdict in one line."""
    found = sections["verdict"]
    if found["outcome"] == "inconclusive":
        return (
            "inconclusive: no noise floor in the reference to judge by; with --no-floor or --outputs-only there is none"
        )
    if found["outcome"] == "within the noise floor":
        bits = found["first_in_bits"]
        return "no divergence beyond the noise floor" + (
            f" (bits differ from {bits} on; at most {_worst(sections)} of what is tolerated)"
            if bits
            else "; all bits are equal"
        )
    first = site_at(sections, found["first"], found["stage"])
    if first is None:
        return f"first divergence   {found['first']}"
    stage = "" if first["stage"] in ("prefill", "run") else f", {first['stage']}"
    return f"first divergence   {first['name']}{stage}   {_how_far(first)}"


def _worst(sections: Sections) -> str:
    return f"{max((site['excess'] or 0.0 for site in sections['sites']), default=0.0):.2g}"


def _how_far(site: Mapping[str, Any]) -> str:
    mine, other = site["non_finite"]
    if mine != other:
        return f"{other} values are not finite, {mine} in the reference"
    error, floor = site["metrics"]["sqnr_db"]["value"], site["floor"]
    told = f"SQNR {error:.0f} dB" if abs(error) < inf else "no signal in the reference" if error < 0 else "no error"
    return told + (f", noise floor {-20 * log10(floor):.0f} dB" if floor else "")


def _table(sections: Sections) -> Iterator[str]:
    rows = [("layer", "added by itself", "inherited", "gain", "MAPE", "verdict")]
    shown, left = _chosen(sections["layers"])
    for row in shown:
        label = f"L{row['layer']}" if isinstance(row["layer"], int) else str(row["layer"])
        gain = "-" if row["gain"] is None else f"{row['gain']:.0f}" if row["gain"] >= 10 else f"{row['gain']:.2g}"
        added = "-" if row["added"] is None else f"{row['added']:.2g}"
        rows.append((label, added, f"{row['inherited']:.2g}", gain, f"{100 * row['mape']:.2g} %", row["word"]))
    widths = [max(len(row[at]) for row in rows) + 3 for at in range(len(rows[0]))]
    for cells in rows:
        yield " " + "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    if left:
        yield f" ... {left} more layers in the report"


def _chosen(layers: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    """Sources, and what follows the first of them; not the clean layers before it."""
    start = next((at for at, row in enumerate(layers) if row["role"] == "source"), 0)
    rest = list(layers[start:])
    sources = [row for row in rest if row["role"] == "source"]
    others = [row for row in rest if row["role"] != "source"][: max(_SHOWN - len(sources), 3)]
    shown = [row for row in rest if row in sources or row in others]
    return shown, len(rest) - len(shown)


def _repairs(sections: Sections) -> Iterator[str]:
    for repair in sections["repairs"][:1]:
        label = f"L{repair['layer']}" if isinstance(repair["layer"], int) else repair["layer"]
        share = f"{100 * repair['share']:.0f} %"
        yield f"fix first: {label} {repair['operator']} (divergence x sensitivity is {share} of the total)"


def _missing(missing: Mapping[str, Sequence[str]]) -> Iterator[str]:
    words = {
        "only_reference": "only in the reference",
        "only_suspect": "only in the suspect",
        "unlike": "of other shape",
    }
    for name, words_ in words.items():
        if found := missing[name]:
            some = ", ".join(found[:2]) + (f" and {len(found) - 2} more" if len(found) > 2 else "")
            yield f"{words_}: {some}"


def _said(value: object) -> str:
    return str(value) if value not in (None, "") else "none"
