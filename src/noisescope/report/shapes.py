"""Shapes of plain values: each can check a value, naming the place that is wrong, and say itself as JSON Schema.

    >>> kl = Record(value=NUMBER, low=NUMBER, high=NUMBER)
    >>> kl.check({"value": 1.0, "low": "x", "high": 2.0}, "report.json: kl")
    Traceback (most recent call last):
    noisescope.errors.InputError: report.json: kl.low: got str, expected a number

What a record does not name may be there too, so that a report of a later version, with more in it, loads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InputError
from ..models.boundary import one_line

__all__ = [
    "LAYER",
    "NUMBER",
    "SAID",
    "TEXT",
    "TRUTH",
    "WHOLE",
    "Either",
    "Kind",
    "Listed",
    "Named",
    "Parallel",
    "Record",
    "Shape",
    "Table",
]


class Shape(Protocol):
    """What a value must look like."""

    def check(self, value: Any, where: str) -> None:
        """Raises InputError, naming the place, for a value that does not."""
        ...

    def schema(self) -> dict[str, Any]:
        """The same in JSON Schema, of the encoded value."""
        ...


@dataclass(frozen=True)
class Kind:
    """A value of one of some Python types."""

    expected: str
    kinds: tuple[type, ...]
    json: Mapping[str, Any]

    def check(self, value: Any, where: str) -> None:
        """Raises for any other type; true and false are no numbers."""
        if not isinstance(value, self.kinds) or (isinstance(value, bool) and bool not in self.kinds):
            raise InputError(f"{where}: got {type(value).__name__}, expected {self.expected}")
        if value == "" and self.json.get("minLength"):
            raise InputError(f"{where}: got none, expected {self.expected}")
        if isinstance(value, int) and abs(value) > 2**63:  # JSON has whole numbers beyond any float
            raise InputError(f"{where}: got a number of {len(str(value))} digits, expected a smaller one")

    def schema(self) -> dict[str, Any]:
        """Its JSON type."""
        return dict(self.json)


_NON_FINITE = {
    "type": "object",
    "properties": {"non_finite": {"enum": ["NaN", "Infinity", "-Infinity"]}},
    "required": ["non_finite"],
    "additionalProperties": False,
}

NUMBER = Kind("a number", (int, float), {"anyOf": [{"type": "number"}, _NON_FINITE]})
WHOLE = Kind("a whole number", (int,), {"type": "integer"})
TEXT = Kind("text", (str,), {"type": "string"})
SAID = Kind("text that is not empty", (str,), {"type": "string", "minLength": 1})
TRUTH = Kind("true or false", (bool,), {"type": "boolean"})
LAYER = Kind("a layer", (int, str), {"type": ["integer", "string"]})


class Record:
    """A table with at least these entries, and others that, where they are, must have their shape."""

    def __init__(self, also: Mapping[str, Shape] | None = None, /, **parts: Shape) -> None:
        self.parts, self.also = parts, dict(also or {})

    def check(self, value: Any, where: str) -> None:
        """Raises for a missing entry, and for one of another shape."""
        _is(dict, "a table", value, where)
        for name in self.parts:
            if name not in value:
                raise InputError(f"{where}.{name}: missing; the file is incomplete")
        for name, part in {**self.parts, **self.also}.items():
            if name in value:
                part.check(value[name], f"{where}.{name}")

    def schema(self) -> dict[str, Any]:
        """An object with required properties."""
        found: dict[str, Any] = {"type": "object"}
        if both := {**self.parts, **self.also}:
            found["properties"] = {name: part.schema() for name, part in both.items()}
        return found | ({"required": list(self.parts)} if self.parts else {})

    def __or__(self, other: "Record") -> "Record":
        return Record({**self.also, **other.also}, **{**self.parts, **other.parts})


@dataclass(frozen=True)
class Table:
    """A table whose entries are all alike, under any names."""

    part: Shape

    def check(self, value: Any, where: str) -> None:
        """Raises for the first entry of another shape."""
        _is(dict, "a table", value, where)
        for name, entry in value.items():
            self.part.check(entry, f"{where}.{one_line(name)}")

    def schema(self) -> dict[str, Any]:
        """An object of such properties."""
        return {"type": "object", "additionalProperties": self.part.schema()}


@dataclass(frozen=True)
class Listed:
    """A list whose entries are all alike."""

    part: Shape
    length: int | None = None

    def check(self, value: Any, where: str) -> None:
        """Raises for the first entry of another shape, or for another length."""
        _is(list, "a list", value, where)
        if self.length is not None and len(value) != self.length:
            raise InputError(f"{where}: got {len(value)} entries, expected {self.length}")
        for at, entry in enumerate(value):
            self.part.check(entry, f"{where}[{at}]")

    def schema(self) -> dict[str, Any]:
        """An array of such items."""
        many = {} if self.length is None else {"minItems": self.length, "maxItems": self.length}
        return {"type": "array", "items": self.part.schema(), **many}


@dataclass(frozen=True)
class Parallel:
    """A record in which some lists say different things of the same entries, and so are equally long."""

    part: Record
    lists: tuple[str, ...]

    def check(self, value: Any, where: str) -> None:
        """Raises as the record does, and for the first list that is longer or shorter than the first."""
        self.part.check(value, where)
        first = self.lists[0]
        for name in self.lists[1:]:
            if len(value[name]) != len(value[first]):
                got, expected = len(value[name]), len(value[first])
                raise InputError(f"{where}.{name}: got {got} entries, expected {expected}, as {first} has")

    def schema(self) -> dict[str, Any]:
        """That of the record: JSON Schema cannot compare lengths."""
        return self.part.schema()


@dataclass(frozen=True)
class Either:
    """`part`; or, if the table has the entry `key`, `other`; with `nothing` also null, or an empty one of tables."""

    part: Shape
    other: Shape | None = None
    key: str = ""
    nothing: bool = False

    def check(self, value: Any, where: str) -> None:
        """Raises for what is none of them."""
        if self.nothing and (value is None or (value == {} and self._is_table)):
            return
        chosen = self.other if self.other is not None and isinstance(value, dict) and self.key in value else self.part
        chosen.check(value, where)

    def schema(self) -> dict[str, Any]:
        """One of several."""
        ways = [self.part.schema()]
        if self.other is not None:
            ways = [{"not": {"required": [self.key]}, **ways[0]}, self.other.schema()]
        ways += [{"type": "null"}] if self.nothing else []
        ways += [{"type": "object", "maxProperties": 0}] if self.nothing and self._is_table else []
        return {"anyOf": ways}

    @property
    def _is_table(self) -> bool:
        return not isinstance(self.part, (Kind, Listed))


@dataclass(frozen=True)
class Named:
    """A shape that many places have, written once in the schema."""

    name: str
    part: Shape

    def check(self, value: Any, where: str) -> None:
        """As the shape does."""
        self.part.check(value, where)

    def schema(self) -> dict[str, Any]:
        """A reference."""
        return {"$ref": f"#/$defs/{self.name}"}


def _is(kind: type, expected: str, value: Any, where: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{where}: got {type(value).__name__}, expected {expected}")
