"""What a report file must hold before it is believed: the documented sections, and what is shown of them.

Only what is read is checked, so that a report of a later minor version, with more in it, loads too.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from ..errors import InputError
from ..models.boundary import one_line

__all__ = ["SCHEMA_VERSION", "check"]

SCHEMA_VERSION = 1

Check: TypeAlias = Callable[[Any, str], None]
"""raises if a value is not what belongs at that place"""


def check(sections: Any, file: str) -> None:
    """Raises for what is no report of this version, naming the place."""
    version = sections.get("schema_version") if isinstance(sections, dict) else None
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        got = one_line(repr(version))[:40] if version is not None else "none"
        raise InputError(f"{file}: schema_version: got {got}, expected a report of version {SCHEMA_VERSION}")
    for name, part in _SECTIONS.items():
        if name not in sections:
            raise InputError(f"{file}: {name}: missing; the report is incomplete")
        part(sections[name], f"{file}: {name}")


# --- kinds of checks --------------------------------------------------------------------------------------------


def _kind(expected: str, *kinds: type) -> Check:
    def check_kind(value: Any, where: str) -> None:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"{where}: got {type(value).__name__}, expected {expected}")

    return check_kind


def _number(value: Any, where: str) -> None:
    """A number that can be computed with: JSON has whole ones beyond any float."""
    _kind("a number", int, float)(value, where)
    if isinstance(value, int) and abs(value) > 2**63:
        raise InputError(f"{where}: got a number of {len(str(value))} digits, expected a smaller one")


_text = _kind("text", str)
_truth = _kind("true or false", bool)
_layer = _kind("a layer", int, str)
_table = _kind("a table", dict)
_list = _kind("a list", list)


def _record(**parts: Check) -> Check:
    """A table with at least these entries."""

    def check_record(value: Any, where: str) -> None:
        _table(value, where)
        for name, part in parts.items():
            if name not in value:
                raise InputError(f"{where}.{name}: missing; the report is incomplete")
            part(value[name], f"{where}.{name}")

    return check_record


def _each(part: Check) -> Check:
    """A table whose entries are all alike."""

    def check_each(value: Any, where: str) -> None:
        _table(value, where)
        for name, entry in value.items():
            part(entry, f"{where}.{one_line(name)}")

    return check_each


def _all(part: Check, *, length: int | None = None) -> Check:
    """A list whose entries are all alike."""

    def check_all(value: Any, where: str) -> None:
        _list(value, where)
        if length is not None and len(value) != length:
            raise InputError(f"{where}: got {len(value)} entries, expected {length}")
        for at, entry in enumerate(value):
            part(entry, f"{where}[{at}]")

    return check_all


def _unless_empty(part: Check) -> Check:
    """Nothing (null, or an empty table), or what belongs there."""
    return lambda value, where: part(value, where) if value not in (None, {}) else None


def _optional(**parts: Check) -> Check:
    """A table in which these entries, where they are, are what belongs there."""

    def check_optional(value: Any, where: str) -> None:
        _table(value, where)
        for name in parts.keys() & value.keys():
            parts[name](value[name], f"{where}.{name}")

    return check_optional


# --- the report -------------------------------------------------------------------------------------------------

_figure = _record(value=_number, low=_number, high=_number)
_measured = _record(
    total_injections=_number,
    degradation=_number,
    degradation_interval=_all(_number, length=2),
    severity=_text,
    kl=_figure,
)
_known_layer = _record(kl=_figure)


def _row(value: Any, where: str) -> None:
    """A row of a level: measured, or failed."""
    (_record(failed=_text) if isinstance(value, dict) and "failed" in value else _measured)(value, where)


def _layer_row(value: Any, where: str) -> None:
    """A layer of which a window or the map tells."""
    (_record(failed=_text) if isinstance(value, dict) and "failed" in value else _known_layer)(value, where)


def _window(value: Any, where: str) -> None:
    _row(value, where)
    _record(start_layer=_number, end_layer=_number)(value, where)
    _optional(amplification=_unless_empty(_figure))(value, where)


def _agreement(value: Any, where: str) -> None:
    _record(checked=_number, spearman=_unless_empty(_figure))(value, where)
    if value["spearman"]:
        _record(ratio_median=_number)(value, where)


_cells = _all(_record(layer=_layer, operator=_text, how=_text, kl=_figure))
_checked_map = _record(cells=_cells, passes=_number, agreement=_agreement, corrections=_each(_number))


def _map(value: Any, where: str) -> None:
    """Checked by injection, or none at all for noise that has no map."""
    (_checked_map if isinstance(value, dict) and "agreement" in value else _optional(cells=_cells))(value, where)


_SECTIONS: dict[str, Check] = {
    "executive_summary": _record(overall_risk_level=_text, risk_score=_number),
    "operator_analysis": _each(_row),
    "layer_analysis": _each(_window),
    "channel_analysis": _unless_empty(
        _record(
            summary=_record(total_outlier_channels=_number),
            per_layer=_each(_record(max_ratio=_number, non_finite=_number)),
        )
    ),
    "map": _map,
    "cross_level": _table,
    "recommendations": _all(_record(priority=_text, component=_text, issue=_text, action=_text, evidence=_text)),
    "metrics": _optional(
        clean=_record(accuracy=_figure, chance=_number, conclusive=_truth),
        together=_each(_row),
        groups=_each(_row),
        layers=_each(_unless_empty(_layer_row)),
        critical_thresholds=_each(_record(how=_text, critical_threshold=_unless_empty(_number))),
    ),
    "coverage": _record(layers=_number),
    "environment": _table,
    "cost": _record(forward_pass_equivalents=_number),
    "config": _record(noise_scale=_number),
}
"""the documented sections, each with what is checked of it"""
