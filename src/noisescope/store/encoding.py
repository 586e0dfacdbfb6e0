"""Strict JSON, the same bytes for the same values: no bare NaN, no infinity, keys in the order they were written."""

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["decode", "encode", "encode_line", "with_numbers"]

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> str:
    """The JSON text of a document; numbers that are not finite become {"non_finite": "NaN"} and the like."""
    text = json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    # half a character, as in a file name that is no valid text, has no bytes in UTF-8: JSON writes it \udc80
    return text.encode("utf-8", "backslashreplace").decode()


def encode_line(value: Any) -> str:
    """The same on one line, in ASCII, without a newline at its end."""
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Any:
    """The value of such a text; a ValueError for any other."""
    try:
        return json.loads(text, object_hook=_number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def with_numbers(value: Any) -> Any:
    """What `json.load` makes of such a text, with the numbers that are not finite as numbers again."""
    if isinstance(value, Mapping):
        return _number({key: with_numbers(part) for key, part in value.items()})
    return [with_numbers(part) for part in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"non_finite": _name(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    raise TypeError(f"expected plain values, not {type(value).__name__}")


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number(found: dict[str, Any]) -> Any:
    name = found.get("non_finite")
    return _NAMES.get(name, found) if len(found) == 1 and isinstance(name, str) else found


def _refuse(constant: str) -> Any:
    raise ValueError(f"a bare {constant} is not JSON")
