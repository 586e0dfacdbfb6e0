"""What can be asked of an injection: layers, module patterns, phases, scales; checked and canonical, without torch.

Nothing here knows a model: whether layer 31 exists is the business of `sites`, whether `softmax` is an operator
that of `operators`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ..errors import InputError, unknown_name

__all__ = ["OUTSIDE", "Layer", "Phase", "Selection", "check_scale", "parse_layers", "parse_names", "parse_phases"]

Outside: TypeAlias = Literal["embed", "final_norm", "head"]
Layer: TypeAlias = int | str
"""A decoder block's index, or `embed`, `final_norm`, `head` for what lies outside the blocks."""
Phase: TypeAlias = Literal["forward", "backward"]

OUTSIDE: tuple[str, ...] = get_args(Outside)
_PHASES: tuple[Phase, ...] = get_args(Phase)
_RANGE = re.compile(r"L?(\d{1,5})(?:-L?(\d{1,5}))?")  # no model has a hundred thousand layers


@dataclass(frozen=True)
class Selection:
    """Which sites are meant. `None` means all of that kind, an empty tuple none.

    Example:
        >>> Selection(layers=parse_layers("9-11,head"), operators=("softmax",)).layers
        (9, 10, 11, 'head')
    """

    layers: tuple[Layer, ...] | None = None
    operators: tuple[str, ...] | None = None
    modules: tuple[str, ...] | None = None
    phases: tuple[Phase, ...] = ("forward",)

    @property
    def empty(self) -> bool:
        """True when one part was explicitly left empty, so that nothing can match."""
        return not self.phases or () in (self.layers, self.operators, self.modules)

    def describe(self) -> str:
        """The selection in words, for messages."""
        parts = [
            f"{name} {' '.join(map(str, value))}"
            for name, value in (("layers", self.layers), ("operators", self.operators), ("modules", self.modules))
            if value is not None
        ]
        return ", ".join(parts) or "all sites"


def parse_layers(layers: int | str | Iterable[int | str] | None) -> tuple[Layer, ...] | None:
    """Layers in canonical form, from ids, ranges, windows and names, in any mixture.

    >>> parse_layers("L9-11, 3, head")
    (9, 10, 11, 3, 'head')
    >>> parse_layers([4, "6-7"])
    (4, 6, 7)
    """
    if layers is None:
        return None
    found: list[Layer] = []
    for item in _listed(layers, what="layers"):
        found.extend(_one_layer(item))
    return tuple(dict.fromkeys(found))


def _one_layer(item: int | str) -> Iterable[Layer]:
    if isinstance(item, bool) or not isinstance(item, (int, str)):
        raise InputError(f"layers: got {item!r}, expected an index, a range such as 9-11, or {' '.join(OUTSIDE)}")
    if isinstance(item, int):
        if item < 0:
            raise InputError(f"layers: got {item}, expected an index from 0")
        return [item]
    found: list[Layer] = []
    for word in filter(None, re.split(r"[,\s]+", item)):
        if word in OUTSIDE:
            found.append(word)
            continue
        match = _RANGE.fullmatch(word)
        if match is None:
            if any(map(str.isdigit, word)):
                raise InputError(f'layers: got "{word}", expected an index from 0 or a range such as 9-11')
            raise unknown_name("layer", word, (*OUTSIDE, "0", "9-11"))
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f'layers: got "{word}", expected a range that goes up')
        found.extend(range(first, last + 1))
    return found


def parse_names(names: str | Iterable[str] | None, *, what: str) -> tuple[str, ...] | None:
    """One name, or a collection of them, as a tuple; None stays None."""
    if names is None:
        return None
    found = _listed(names, what=what)
    for name in found:
        if not isinstance(name, str) or not name:
            raise InputError(f"{what}: got {name!r}, expected a name or a pattern")
    return tuple(found)


def _listed(given: Any, *, what: str) -> list[Any]:
    """One thing, or a collection of them, as a list."""
    if isinstance(given, (int, str)):
        return [given]
    try:
        return list(given)
    except TypeError:
        raise InputError(f"{what}: got {given!r}, expected one or a list of them") from None


def parse_phases(phases: str | Iterable[str]) -> tuple[Phase, ...]:
    """Phases in canonical order, from `"forward"`, `"backward"`, `"both"` or a collection of them."""
    names = parse_names(phases, what="phases") or ()
    for name in names:
        if name not in (*_PHASES, "both"):
            raise unknown_name("phase", name, (*_PHASES, "both"))
    return tuple(phase for phase in _PHASES if phase in names or "both" in names)


def check_scale(scale: float, *, what: str = "scale") -> float:
    """The scale as a float, if it is a finite number of at least zero."""
    if isinstance(scale, bool):
        raise InputError(f"{what}: got {scale}, expected a number >= 0")
    try:
        number = float(scale)
    except (TypeError, ValueError):
        raise InputError(f"{what}: got {scale!r}, expected a number >= 0") from None
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{what}: got {number}, expected a finite number >= 0")
    return number


def check_scales(scales: Mapping[Layer, float] | Mapping[str, float] | None, *, what: str) -> dict[Layer, float]:
    """A mapping of scales, each checked; messages name the entry."""
    if scales is not None and not isinstance(scales, Mapping):
        raise InputError(f"{what}: got {scales!r}, expected a dictionary of scales")
    return {key: check_scale(value, what=f"{what}[{key!r}]") for key, value in (scales or {}).items()}
