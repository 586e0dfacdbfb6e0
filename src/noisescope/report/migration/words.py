"""What a migration plan says in words, the same in every format.

`name` is how a text that is not ours is written where it goes: as it is, or made inert.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..figures import NOTHING, Interval, plural, share
from ..layers import label
from ..rows import Sections

__all__ = ["basis", "check", "figure", "headline", "layers", "percent"]

Name: TypeAlias = Callable[[str], str]


def headline(sections: Sections, name: Name = str) -> str:
    """Which layers to validate first."""
    first = [row["layer"] for row in sections["rows"] if row["priority"] == 1]
    return f"Validate {layers(first, name)} first: {plural(len(first), 'layer')} of {len(sections['rows'])}."


def basis(sections: Sections, name: Name = str) -> str:
    """What the risk is made of."""
    noise = f"the KL that noise of scale {sections['noise_scale']:g} costs in a layer"
    found = sections["comparison"]
    if found is None:
        return f"Risk is sensitivity alone, {noise}: the new device has not been compared yet."
    own = "adds by itself" if found["fed"] else "carries at its last operator"
    sides = " and ".join(name(str(found[f"{side}_file"] or f"the {side}")) for side in ("reference", "suspect"))
    return (
        f"Risk is sensitivity times divergence: {noise}, times the square of the error that it {own} between {sides}, "
        "in units of that scale."
    )


def layers(found: Sequence[int | str], name: Name = str) -> str:
    """As in L9, L10, head."""
    return ", ".join(name(label(layer)) for layer in found) or "none"


def check(row: Mapping[str, Any]) -> str:
    """How strictly it is checked."""
    limit = row["max_mape"]
    return f"{row['validation']}, MAPE < {limit:.0%}" if limit is not None else str(row["validation"])


def figure(found: Mapping[str, Any] | None) -> str:
    """A figure with its interval."""
    return NOTHING if found is None else str(Interval(found["value"], found["low"], found["high"]))


def percent(found: Mapping[str, Any] | None) -> str:
    """The same as a share."""
    return NOTHING if found is None else share(found["value"], (found["low"], found["high"]))
