"""Frozen dataclasses as plain values and back, exactly: what the journal keeps of a result.

    pack(Estimate(...))              ->  {"value": 0.1, "low": ...}
    unpack(Estimate, that)           ->  the same Estimate, bit for bit

The annotations of a dataclass say what comes back, so that nothing in a file can choose what is made of it. Arrays and
tensors are their bytes; mappings are lists of pairs, so that any key will do.
"""

import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

__all__ = ["pack", "unpack"]

_T = TypeVar("_T")


def pack(value: Any) -> Any:
    """Plain values that hold all of it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: pack(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return [[pack(key), pack(part)] for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [pack(part) for part in value]
    if hasattr(value, "detach"):  # a tensor, without importing torch to ask
        value = value.detach().cpu().numpy()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "bytes": b64encode(value.tobytes()).decode("ascii"),
        }
    raise TypeError(f"cannot keep a {type(value).__name__} in a journal")


def unpack(kind: type[_T], plain: Any) -> _T:
    """The value of that kind; ValueError if the plain values are not those of one."""
    try:
        return cast(_T, _unpack(kind, plain))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None


def _unpack(kind: Any, plain: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{field.name: _unpack(hints[field.name], plain[field.name]) for field in fields(kind)})
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _unpack_one_of(inside, plain)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_unpack(inside[0], key): _unpack(inside[1], part) for key, part in plain}
    if origin is tuple:
        kinds = [inside[0]] * len(plain) if inside[-1] is Ellipsis else list(inside)
        return tuple(_unpack(part, value) for part, value in zip(kinds, plain, strict=True))
    if origin is list:
        return [_unpack(inside[0], part) for part in plain]
    make = _ARRAYS.get(getattr(origin or kind, "__name__", ""))
    return make(plain) if make is not None else plain


def _unpack_one_of(kinds: tuple[Any, ...], plain: Any) -> Any:
    """An optional value; unions of plain kinds are plain anyway."""
    others = [kind for kind in kinds if kind is not type(None)]
    return _unpack(others[0], plain) if plain is not None and len(others) == 1 else plain


def _array(plain: Any) -> Any:
    import numpy as np

    return np.frombuffer(b64decode(plain["bytes"]), dtype=np.dtype(plain["dtype"])).reshape(plain["shape"]).copy()


def _tensor(plain: Any) -> Any:
    import torch

    return torch.from_numpy(_array(plain))


_ARRAYS: Mapping[str, Callable[[Any], Any]] = {"ndarray": _array, "Tensor": _tensor}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
