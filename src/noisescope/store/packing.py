"""Frozen dataclasses as plain values and back, exactly: what the journal keeps of a result.

    pack(Estimate(...))              ->  {"value": 0.1, "low": ...}
    unpack(Estimate, that)           ->  the same Estimate, bit for bit

The annotations of a dataclass say what comes back, so that nothing in a file can choose what is made of it, and what is
not of the annotated kind is refused. Arrays and tensors are their bytes; mappings are lists of pairs, so that any key
will do.
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
    except (TypeError, LookupError, AttributeError) as error:
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
    return make(plain, inside) if make is not None else _scalar(kind, plain)


def _unpack_one_of(kinds: tuple[Any, ...], plain: Any) -> Any:
    """An optional value, or one of several plain kinds."""
    if plain is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) == 1:
        return _unpack(others[0], plain)
    if not any(_is_a(kind, plain) for kind in others):
        raise ValueError(f"expected one of {others}, not a {type(plain).__name__}")
    return plain


def _scalar(kind: Any, plain: Any) -> Any:
    if kind in _SCALARS and not _is_a(kind, plain):
        raise ValueError(f"expected a {kind.__name__}, not a {type(plain).__name__}")
    return plain


def _is_a(kind: Any, plain: Any) -> bool:
    """Whether a plain value is of that kind: a whole number is a number too, and true is none."""
    return type(plain) in ((int, float) if kind is float else (kind,))


def _array(plain: Any, kinds: tuple[Any, ...]) -> Any:
    """An array, of the element type that the annotation names if it names one."""
    import numpy as np

    found = np.frombuffer(b64decode(plain["bytes"]), dtype=np.dtype(plain["dtype"])).reshape(plain["shape"]).copy()
    wanted = next(iter(get_args(kinds[1])), None) if len(kinds) == 2 else None
    if isinstance(wanted, type) and found.dtype != np.dtype(wanted):
        raise ValueError(f"expected an array of {wanted.__name__}, not of {found.dtype}")
    return found


def _tensor(plain: Any, _kinds: tuple[Any, ...]) -> Any:
    import torch

    return torch.from_numpy(_array(plain, ()))


_SCALARS = (bool, int, float, str)
_ARRAYS: Mapping[str, Callable[[Any, tuple[Any, ...]], Any]] = {"ndarray": _array, "Tensor": _tensor}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
