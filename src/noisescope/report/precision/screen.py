"""A precision plan on a terminal.

4.98 bits on average: KL 0.0312 [0.0295, 0.0331] nats per token, measured.
61.2% of that of the best single format within them, nvfp4 (4.50 bits).

               bits  KL measured, nats/token  KL predicted
 plan          4.98  0.0312 [0.0295, 0.0331]  0.0321
 all mxfp4     4.25  0.0821 [0.0788, 0.0856]  0.0871
...
"""

from collections.abc import Iterator

from ..escaping import short
from ..figures import Interval, in_ascii, number
from ..rows import Sections
from ..summary import columns
from .words import against, agreement, headline, mixture, refinement, remarks

__all__ = ["screen_lines"]


def screen_lines(sections: Sections) -> list[str]:
    """Its lines; nothing in them acts on a terminal, whatever the names."""
    return in_ascii("\n".join(_lines(sections))).splitlines()


def _lines(sections: Sections) -> Iterator[str]:
    yield headline(sections)
    yield against(sections, short)
    yield ""
    head = ("", "bits", "KL measured, nats/token", "KL predicted")
    rows = [
        (short(row["name"]), number(row["bits"]), str(Interval.of(row["kl"])), number(row["predicted_kl"]))
        for row in sections["verified"]
    ]
    yield columns([head, *rows], before=" ")
    yield ""
    yield f"weights  {mixture(sections, short)}"
    yield from filter(None, [refinement(sections)])
    yield agreement(sections, short)
    yield from remarks(sections)
