"""A migration plan on a terminal.

Validate head, L29 first: 2 layers of 12.

 layer  priority  precision  risk, nats/token         check                      evidence
 head   1         FP16       0.516 [0.493, 0.541]     validate first, MAPE < 5%  among the top 10% of risk
...
 and 7 more of priority 3, INT8, standard: L28, L1, ...

validate with
 noisescope trace -o reference.trace  # on the device that is trusted
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ..escaping import short, visible
from ..figures import in_ascii
from ..layers import label
from ..rows import Sections
from ..summary import columns
from .words import basis, check, figure, headline, layers, percent

__all__ = ["screen_lines"]

Row: TypeAlias = Mapping[str, Any]
SHOWN = 8
"""layers of the last priority with a line of their own"""


def screen_lines(sections: Sections) -> list[str]:
    """Its lines; nothing in them acts on a terminal, whatever the names."""
    return in_ascii("\n".join(_lines(sections))).splitlines()


def _lines(sections: Sections) -> Iterator[str]:
    yield headline(sections, short)
    yield basis(sections, short)
    yield ""
    rows, rest = _in_view(sections["rows"])
    yield _table(rows, compared=sections["comparison"] is not None)
    if rest:
        told = f"{short(rest[0]['precision'])}, {short(check(rest[0]))}"
        yield f" and {len(rest)} more of priority 3, {told}: {layers([row['layer'] for row in rest], short)}"
    if steps := sections["commands"]:
        yield "\nvalidate with"
        for step in steps:
            yield f" {visible(step['command'], longest=1000)}  # {short(step['why'])}"


def _in_view(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """What has a line of its own: of the last priority a few, or it would be most of the screen."""
    rest = [row for row in rows if row["priority"] == 3]
    return (rows, []) if len(rest) <= SHOWN else ([row for row in rows if row["priority"] != 3], rest)


def _table(rows: Sequence[Row], *, compared: bool) -> str:
    head = ["layer", "priority", "precision", "risk, nats/token", *(["MAPE"] if compared else []), "check", "evidence"]
    lines = [
        [
            short(label(row["layer"])),
            str(row["priority"]),
            short(row["precision"]),
            figure(row["risk"]),
            *([percent(row["mape"])] if compared else []),
            short(check(row)),
            short("; ".join(row["evidence"])),
        ]
        for row in rows
    ]
    return columns([head, *lines], before=" ")
