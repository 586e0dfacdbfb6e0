"""A migration plan on a terminal.

Validate L3, L5, head first: 3 layers of 11.

 layer  priority  precision  risk, nats/token         check                        evidence
 L5     1         FP16       0.0211 [0.0198, 0.0225]  validate first, MAPE < 5.0%  among the top 10.0% of risk
...

validate with
 noisescope trace -o reference.trace  # on the device that is trusted
"""

from collections.abc import Iterator

from ..escaping import short, visible
from ..figures import in_ascii
from ..layers import label
from ..rows import Sections
from ..summary import columns
from .words import basis, check, figure, headline, percent

__all__ = ["screen_lines"]


def screen_lines(sections: Sections) -> list[str]:
    """Its lines; nothing in them acts on a terminal, whatever the names."""
    return in_ascii("\n".join(_lines(sections))).splitlines()


def _lines(sections: Sections) -> Iterator[str]:
    yield headline(sections, short)
    yield basis(sections, short)
    yield ""
    yield _table(sections)
    if steps := sections["commands"]:
        yield "\nvalidate with"
        for step in steps:
            yield f" {visible(step['command'], longest=1000)}  # {short(step['why'])}"


def _table(sections: Sections) -> str:
    compared = sections["comparison"] is not None
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
        for row in sections["rows"]
    ]
    return columns([head, *lines], before=" ")
