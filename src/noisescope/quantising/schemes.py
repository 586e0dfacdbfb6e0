"""What is asked of each weight: a format for it, one for the activations that it meets, or both.

"mxfp4"                     weights in mxfp4, activations as they are
"int8/int8"                 both
"W4A16" "W8A8" "W4A4"       the usual names: integers, weights of 4 bit in groups, activations by token
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError, quoted
from ..noise.formats import Format, parse_format

__all__ = ["Scheme", "parse_scheme"]

_USUAL = re.compile(r"W(4|8)A(4|8|16)", re.IGNORECASE)
_ACTIVATIONS: Mapping[str, str | None] = {"4": "int4:channel", "8": "int8:channel", "16": None}


@dataclass(frozen=True)
class Scheme:
    """The formats of a weight and of what it is multiplied with; None leaves it as it is."""

    weights: Format | None = None
    activations: Format | None = None

    def __str__(self) -> str:
        if self.activations is None:
            return "as it is" if self.weights is None else str(self.weights)
        return f"{self.weights or 'none'}/{self.activations}"


def parse_scheme(text: "str | Format | Scheme") -> Scheme:
    """A scheme by its name.

    >>> parse_scheme("W8A8")
    Scheme(weights=int8, activations=int8)
    """
    if isinstance(text, Scheme):
        return text
    if isinstance(text, Format):
        return Scheme(text)
    if not isinstance(text, str):
        raise InputError(f"format: got {quoted(text)}, expected a format, WEIGHTS/ACTIVATIONS, or a name such as W8A8")
    if found := _USUAL.fullmatch(text.strip()):
        weights, activations = found.groups()
        inputs = _ACTIVATIONS[activations]
        return Scheme(parse_format(f"int{weights}"), parse_format(inputs) if inputs else None)
    weights, slash, activations = text.partition("/")
    return Scheme(_format(weights), _format(activations) if slash else None)


def _format(text: str) -> Format | None:
    return None if text.strip() == "none" else parse_format(text)
