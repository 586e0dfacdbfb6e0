"""A sensitivity profile, in any of the shapes that people bring: what noise costs in each layer."""

from collections.abc import Mapping
from typing import Any

from ..diagnosis.by_layer import layer_degradation
from ..errors import InputError, quoted

__all__ = ["losses_by_layer", "plain"]


def losses_by_layer(given: Mapping[Any, Any]) -> Mapping[Any, float]:
    """Layer -> degradation; a layer's own is the mean over the windows that contain it."""
    if not isinstance(given, Mapping):
        raise InputError(f"sensitivity_profile: got {quoted(given)}, expected layers with their degradation")
    rows = {layer: row for layer, row in given.items() if isinstance(row, Mapping)}
    if rows and len(rows) == len(given) and all({"start_layer", "end_layer"} <= row.keys() for row in rows.values()):
        return layer_degradation(rows)
    found = {**given, **{layer: row.get("degradation") for layer, row in rows.items()}}
    return {layer: plain(value) for layer, value in found.items()}


def plain(value: Any) -> Any:
    """A number of NumPy or a tensor of one as a plain number."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
