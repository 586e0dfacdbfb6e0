"""Python objects as data: texts, rows (dictionaries, a DataFrame, a dataset), token batches, a DataLoader.

What can be indexed (a list, a DataFrame, a dataset) has its samples chosen; what can only be walked through (a
DataLoader, a generator) may have no end, and its first samples are taken.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from ..errors import InputError
from .reading import Row, Rows
from .token_rows import TokenRow, unpack

__all__ = ["Tokenised", "read_object"]

_EXPECTED = "expected texts, rows with named fields, or token batches with input_ids"


@dataclass(frozen=True)
class Tokenised:
    """Rows of tokens, each with where it came from."""

    name: str
    rows: Iterator[tuple[str, TokenRow]]
    endless: bool
    label: str = "data"


def read_object(source: object) -> Rows | Tokenised:
    """What the object holds, by its first item; items are asked for one by one."""
    if isinstance(source, (Mapping, Tensor)):
        return Tokenised("tokens", (("data", row) for row in unpack(source, where="data")), endless=False)
    items = _items(source)
    try:
        first = next(items)
    except StopIteration:
        raise InputError(f"data: empty, {_EXPECTED}") from None
    numbered = enumerate(chain([first], items))
    endless = not hasattr(source, "__getitem__")
    if isinstance(first, str):
        texts = (Row(f"data[{at}]", {"text": item}) for at, item in numbered)
        return Rows("texts", "data", texts, endless)
    if isinstance(first, Tensor) or (isinstance(first, Mapping) and _is_batch(first)):
        return Tokenised("tokens", _token_rows(numbered), endless)
    if isinstance(first, Mapping):
        return Rows("rows", "data", (_row(at, item) for at, item in numbered), endless)
    raise InputError(f"data[0]: got {type(first).__name__}, {_EXPECTED}")


def _items(source: Any) -> Iterator[Any]:
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # a DataFrame, without importing pandas
        return ({str(name): _plain(value) for name, value in row.items()} for row in source.to_dict("records"))
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        raise InputError(f"data: got {type(source).__name__}, {_EXPECTED}")
    return iter(source)


def _is_batch(item: Mapping[Any, Any]) -> bool:
    return "input_ids" in item or any(isinstance(value, Tensor) for value in item.values())


def _token_rows(numbered: Iterable[tuple[int, object]]) -> Iterator[tuple[str, TokenRow]]:
    for at, item in numbered:
        for row in unpack(item, where=f"data[{at}]"):
            yield f"data[{at}]", row


def _row(at: int, item: object) -> Row:
    if not isinstance(item, Mapping):
        raise InputError(f"data[{at}]: got {type(item).__name__}, expected a row with named fields, as the first")
    return Row(f"data[{at}]", item)


def _plain(value: Any) -> Any:
    """Arrays in a DataFrame as lists, also one level down."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
