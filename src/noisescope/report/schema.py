"""What a report file must hold before it is believed, and how reports of earlier versions are read.

Version 1 had no `readings`, no `next_steps`, no observer effect and no commands in its recommendations. The same shapes
are published as JSON Schema: docs/report.schema.json.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..models.boundary import one_line
from .shapes import LAYER, NUMBER, SAID, TEXT, TRUTH, WHOLE, Either, Listed, Named, Parallel, Record, Shape, Table

__all__ = ["SCHEMA_VERSION", "json_schema", "upgraded"]

SCHEMA_VERSION = 2


def upgraded(sections: Any, file: str) -> dict[str, Any]:
    """The sections of a report of any version, as this version has them; InputError, naming the place, for others."""
    version = sections.get("schema_version") if isinstance(sections, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        got = one_line(repr(version))[:40] if version is not None else "none"
        raise InputError(f"{file}: schema_version: got {got}, expected a report of version 1 to {SCHEMA_VERSION}")
    for earlier in range(version, SCHEMA_VERSION):
        sections = _UPGRADES[earlier](sections)
    _check(sections, file)
    return dict(sections)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of this version."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "noisescope report",
        "description": 'Numbers that are not finite are written {"non_finite": "NaN"} and the like.',
        "type": "object",
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            **{name: part.schema() for name, part in _SECTIONS.items()},
        },
        "required": ["schema_version", *_SECTIONS],
        "$defs": {shape.name: shape.part.schema() for shape in _NAMED},
    }


def _check(sections: Mapping[str, Any], file: str) -> None:
    for name, part in _SECTIONS.items():
        if name not in sections:
            raise InputError(f"{file}: {name}: missing; the file is incomplete")
        part.check(sections[name], f"{file}: {name}")


# --- earlier versions -------------------------------------------------------------------------------------------


def _from_1(sections: Mapping[str, Any]) -> dict[str, Any]:
    advice, coverage = sections.get("recommendations"), sections.get("coverage")
    return {
        **sections,
        "schema_version": 2,
        "readings": {},
        "next_steps": [],
        "recommendations": [{"command": "", **_table(item)} for item in advice] if isinstance(advice, list) else advice,
        "coverage": {"observer": {}, **coverage} if isinstance(coverage, dict) else coverage,
    }


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_UPGRADES: Mapping[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _from_1}
"""version -> its report as the next version has it"""


# --- the report -------------------------------------------------------------------------------------------------

_figure = Named("figure", Record(value=NUMBER, low=NUMBER, high=NUMBER, stderr=NUMBER, n=WHOLE))
_pair = Listed(NUMBER, length=2)
_failed = Record({"non_finite": TRUTH}, failed=SAID, total_injections=WHOLE)
_measured = Record(
    degradation=NUMBER,
    sensitivity_score=NUMBER,
    baseline_acc=NUMBER,
    noisy_acc=NUMBER,
    degradation_interval=_pair,
    severity=TEXT,
    sensitivity_reading=TEXT,
    noise_tolerance_index=Either(NUMBER, nothing=True),
    kl=_figure,
    flip_rate=_figure,
    perplexity=_figure,
    snr_db=NUMBER,
    dose=NUMBER,
    total_injections=WHOLE,
    cost=NUMBER,
)
_span = Record(start_layer=WHOLE, end_layer=WHOLE)
_amplified = _span | Record({"amplification": Either(_figure, nothing=True)})
_row = Named("row", Either(_measured, _failed, "failed"))
_group = Named("group", Either(_measured | _span, _failed | _span, "failed"))
_window = Named("window", Either(_measured | _amplified, _failed | _amplified, "failed"))
_layer = Either(Record(kl=_figure, how=TEXT), Record(failed=SAID), "failed", nothing=True)

_cell = Named(
    "cell",
    Record(
        layer=LAYER,
        operator=TEXT,
        kl=_figure,
        how=TEXT,
        predicted=_figure,
        measured=Either(_figure, nothing=True),
        disagrees=TRUTH,
    ),
)
_cells = Listed(_cell)
_map_agreement = Record(
    checked=WHOLE,
    spearman=Either(_figure, nothing=True),
    ratio_median=Either(NUMBER, nothing=True),
    ratio_quartiles=Either(_pair, nothing=True),
)
_checked_map = Record(
    noise_scale=NUMBER,
    cells=_cells,
    agreement=_map_agreement,
    corrections=Table(NUMBER),
    passes=WHOLE,
    channels=Table(Parallel(Record(channels=Listed(WHOLE), shares=Listed(NUMBER)), ("channels", "shares"))),
)
_module = Parallel(
    Record(
        outlier_indices=Listed(WHOLE),
        num_outliers=WHOLE,
        total_channels=WHOLE,
        outlier_percentage=NUMBER,
        outlier_ratios=Listed(NUMBER),
        max_ratio=NUMBER,
        severities=Listed(TEXT),
        kinds=Listed(Either(TEXT, nothing=True)),
        persistence=Listed(Either(NUMBER, nothing=True)),
        samples=Either(WHOLE, nothing=True),
        non_finite=WHOLE,
    ),
    ("outlier_indices", "outlier_ratios", "severities", "kinds", "persistence"),
)
_proxy = Record(
    {"holds": Either(TRUTH, nothing=True)},
    name=TEXT,
    spearman=Either(_figure, nothing=True),
    kendall=Either(_figure, nothing=True),
    expected=TEXT,
    verdict=TEXT,
    reason=TEXT,
)
_crossed = Record(layer=LAYER, degradation=NUMBER, sensitivity_score=NUMBER, total_outliers=WHOLE)
_threshold = Record(
    critical_threshold=Either(NUMBER, nothing=True),
    risk=TEXT,
    how=TEXT,
    predicted=Either(NUMBER, nothing=True),
    predicted_interval=Either(Listed(Either(NUMBER, nothing=True), length=2), nothing=True),
    measured_between=Either(_pair, nothing=True),
    evaluations=WHOLE,
)

_NAMED = (_figure, _row, _group, _window, _cell)

_SECTIONS: Mapping[str, Shape] = {
    "executive_summary": Record(
        critical_operators=Listed(TEXT),
        num_critical_operators=WHOLE,
        avalanche_points=Listed(Record(layer_range=TEXT, degradation=NUMBER, severity=TEXT)),
        num_avalanche_points=WHOLE,
        total_outlier_channels=WHOLE,
        overall_risk_level=TEXT,
        risk_score=NUMBER,
    ),
    "operator_analysis": Table(_row),
    "layer_analysis": Table(_window),
    "channel_analysis": Either(
        Record(
            summary=Record(layers_with_outliers=WHOLE, total_outlier_channels=WHOLE),
            per_layer=Table(_module),
        ),
        nothing=True,
    ),
    "map": Either(Record({"cells": _cells, "note": TEXT}), _checked_map, "agreement"),
    "cross_level": Record({"rows": Listed(_crossed), "outliers_vs_sensitivity": NUMBER, "expected": TEXT}),
    "recommendations": Listed(
        Record(priority=TEXT, component=TEXT, issue=TEXT, action=TEXT, evidence=TEXT, command=TEXT)
    ),
    "metrics": Record(
        {
            "clean": Record(accuracy=_figure, perplexity=_figure, chance=NUMBER, conclusive=TRUTH),
            "together": Table(_row),
            "order": Record(operators=Listed(TEXT), found=Listed(TEXT), expected=Listed(TEXT), as_expected=TRUTH),
            "groups": Table(_group),
            "layers": Table(_layer),
            "critical_thresholds": Table(_threshold),
            "agreement": Either(Record(proxies=Listed(_proxy), layers=WHOLE), nothing=True),
            "failed": Table(SAID),
        }
    ),
    "coverage": Record(
        layers=WHOLE,
        sites=Table(WHOLE),
        in_steps=Table(WHOLE),
        hidden=Table(WHOLE),
        observer=Either(Record(bit_identical=TRUTH, steps_difference=NUMBER), nothing=True),
    ),
    "environment": Record(
        {
            "parameters": WHOLE,
            "dtype": TEXT,
            "device": TEXT,
            "attention": Either(TEXT, nothing=True),
            "remote_code": TRUTH,
        }
    ),
    "cost": Record(forward_pass_equivalents=NUMBER, by_stage=Table(NUMBER)),
    "config": Record(
        {
            "weights": TEXT,
            "level": TEXT,
            "error_type": TEXT,
            "sampled": TEXT,
            "layer_noise_scale": Either(NUMBER, nothing=True),
            "avalanche_threshold": NUMBER,
            "outlier_threshold": NUMBER,
            "target_degradation": NUMBER,
            "window_size": WHOLE,
            "step_size": WHOLE,
            "trials": WHOLE,
            "seed": WHOLE,
            "curvature": TRUTH,
        },
        model=TEXT,
        data=Record(name=TEXT, task=TEXT, rows=WHOLE, predicted_tokens=WHOLE, longest_row=WHOLE, fingerprint=TEXT),
        noise_scale=NUMBER,
    ),
    "readings": Table(Record(formula=TEXT, unit=TEXT, bands=Listed(TEXT), source=TEXT, note=TEXT)),
    "next_steps": Listed(Record(command=TEXT, why=TEXT)),
}
"""the sections, each with its shape"""
