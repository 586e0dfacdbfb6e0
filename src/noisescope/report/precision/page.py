"""A precision plan as one HTML page that needs nothing else, in the frame of the page of a report."""

from typing import Any

from ..figures import number
from ..html import render_plain
from ..rows import Sections
from . import tables
from .trade_off import picture
from .words import against, agreement, headline, mixture, refinement, remarks

__all__ = ["render_page"]


def render_page(sections: Sections) -> str:
    """The whole page as text; the same sections give the same text."""
    return render_plain("precision.html", _contents(sections), styles=("precision.css",))


def _contents(sections: Sections) -> dict[str, Any]:
    """What is on the page, as text, tables and a picture."""
    data = sections["data"]
    return {
        "title": str(sections["model"]),
        "toc": [
            ("verified", "Verified"),
            ("trade-off", "Bits against KL"),
            ("layers", "Formats by layer"),
            ("map", "Every weight"),
            ("checks", "Is the map true?"),
        ],
        "headline": headline(sections),
        "against": against(sections),
        "bits": number(sections["plan"]["bits"]),
        "data": f"Planned on {data['rows']} rows of {data['name']}, verified on {data['held_out_rows']} others.",
        "verified": tables.verified(sections),
        "picture": picture(sections),
        "mixture": mixture(sections),
        "refinement": refinement(sections),
        "layers": tables.by_layer(sections),
        "weights": tables.weights(sections),
        "agreement": agreement(sections),
        "remarks": remarks(sections),
        "checks": tables.checks(sections),
        "cost": number(sections["cost"]),
    }
