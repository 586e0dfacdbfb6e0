"""A comparison as a notebook shows it: a few lines without scripts that take the colours of the notebook."""

from ..escaping import short
from ..figures import number
from ..rows import Sections
from .sites import label, percent
from .words import headline, layer_word, outcome, subject

__all__ = ["render_comparison_summary"]

LAYERS = 8
_FACTS = ("reference", "suspect", "differs")


def render_comparison_summary(sections: Sections) -> str:
    """A dozen lines of HTML, everything escaped; the same sections give the same text."""
    from ..html import environment

    return (
        environment()
        .get_template("divergence_notebook.html")
        .render(
            title=short(sections["traces"]["reference"]["model"]),
            outcome=short(outcome(sections)),
            headline=headline(sections, short),
            rows=_rows(sections) if sections["verdict"]["outcome"] == "diverges" else (),
            facts=[(what, value) for what, value in subject(sections, short) if what in _FACTS],
        )
    )


def _rows(sections: Sections) -> list[tuple[str, ...]]:
    """Sources, and layers that follow the first of them, as many as a dozen lines hold."""
    layers = sections["layers"]
    start = next((at for at, row in enumerate(layers) if row["role"] == "source"), 0)
    return [
        (
            short(label(row["layer"])),
            number(row["added"]),
            number(row["inherited"]),
            number(row["gain"]),
            percent(row["mape"]),
            short(layer_word(sections, row)),
        )
        for row in layers[start : start + LAYERS]
    ]
