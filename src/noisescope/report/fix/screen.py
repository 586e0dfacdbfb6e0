"""A minimal fix on a terminal.

Raise 5 of 120 groups of weights from mxfp4 to bf16: KL 0.0471 [0.0452, 0.0491] nats per token, within 0.05.
One fewer was run too: 0.0522 [0.0501, 0.0544]. ...
"""

from collections.abc import Iterator

from ..escaping import short, visible
from ..figures import Interval, in_ascii, number
from ..layers import label
from ..rows import Sections
from ..summary import columns
from .words import basis, headline

__all__ = ["screen_lines"]


def screen_lines(sections: Sections) -> list[str]:
    """Its lines; nothing in them acts on a terminal, whatever the names."""
    return in_ascii("\n".join(_lines(sections))).splitlines()


def _lines(sections: Sections) -> Iterator[str]:
    yield headline(sections, short)
    yield basis(sections, short)
    if sections["raised"]:
        head = ("", "layer", "KL it saves", "weights")
        rows = [
            (str(at), short(label(row["layer"])), number(row["gain"]), visible(" ".join(row["paths"]), longest=200))
            for at, row in enumerate(sections["raised"], 1)
        ]
        yield "\n" + columns([head, *rows], before=" ")
    heads = ("raised", "KL measured, nats/token", "within")
    steps = [(str(s["raised"]), str(Interval.of(s["kl"])), "yes" if s["within"] else "no") for s in sections["steps"]]
    yield "\n" + columns([heads, *steps], before=" ")
