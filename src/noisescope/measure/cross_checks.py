"""What the method documents call correlations between metrics and between levels, over the agreement panel."""

import re
from collections import defaultdict
from collections.abc import Mapping
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..keys import Key
from .agreement import EXPECTED, Column, layer_values
from .rank_correlation import rank_correlations, spearman

__all__ = ["correlate_layer_and_channel_sensitivity", "validate_metric_correlations"]

MAPE_LIMIT, DEGRADATION_LIMIT = 0.05, 0.10
"""a device whose values are off by more than the first is expected to lose more accuracy than the second"""

_RANKED = {
    "hessian_sensitivity": ("hessian_trace", ("sensitivity", "degradation")),
    "outliers_sensitivity": ("outlier_count", ("sensitivity", "degradation")),
    "sparsity_degradation": ("sparsity", ("degradation", "sensitivity")),
}
"""check -> proxy, and what it is held against: the first of these columns that there is"""


def validate_metric_correlations(results: Mapping[str, Column]) -> dict[str, dict[str, Any]]:
    """Check -> what theory expects (`expected`), what was found (`found`, `low`, `high`) and whether it `holds`.

    `results` has one list (or dictionary by layer) per metric: `sensitivity`, `degradation`, `hessian_trace`,
    `outlier_count`, `sparsity`, `mape`; a check whose metrics are missing is left out. `found` is Spearman's r, which
    no single extreme layer decides. For `mape` (a fraction, 0.05 is 5%) it is the share of layers above 5% that lose
    more than 10%, and `others` is that share among the rest; it holds if it is at least half and larger than that.

    >>> found = validate_metric_correlations({"sensitivity": [1, 2, 3, 4], "sparsity": [0.9, 0.5, 0.4, 0.1]})
    >>> found["sparsity_degradation"]["found"], found["sparsity_degradation"]["holds"]
    (-1.0, True)
    """
    columns = layer_values(results)
    checks = {}
    for check, (proxy, against) in _RANKED.items():
        other = next((name for name in against if name in columns), None)
        if proxy in columns and other is not None:
            checks[check] = _ranked(proxy, columns[proxy], columns[other])
    if "mape" in columns and "degradation" in columns:
        checks["mape_degradation"] = _exceeding(columns["mape"], columns["degradation"])
    if not checks:
        raise InputError(
            f"results: got {' '.join(columns) or 'none'}, expected sensitivity or degradation, and at least one of "
            "hessian_trace outlier_count sparsity mape"
        )
    return checks


def _ranked(proxy: str, values: NDArray[np.float64], against: NDArray[np.float64]) -> dict[str, Any]:
    found, _ = rank_correlations(values, against, key=Key(0, "agreement"))
    expected = EXPECTED[proxy]
    return {
        "expected": str(expected),
        "found": found.value,
        "low": found.low,
        "high": found.high,
        "holds": expected.holds(found.value),
    }


def _exceeding(mape: NDArray[np.float64], degradation: NDArray[np.float64]) -> dict[str, Any]:
    known = ~(np.isnan(mape) | np.isnan(degradation))
    off, lost = mape[known] > MAPE_LIMIT, degradation[known] > DEGRADATION_LIMIT
    found, others = (float(lost[part].mean()) if part.any() else nan for part in (off, ~off))
    return {
        "expected": f"degradation > {DEGRADATION_LIMIT:.0%} where MAPE > {MAPE_LIMIT:.0%}",
        "found": found,
        "others": others,
        "holds": found >= 0.5 and not found <= others if off.any() else None,
    }


def correlate_layer_and_channel_sensitivity(
    windows: Mapping[str, Mapping[str, Any]], outlier_report: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], float]:
    """One row per layer with its degradation and outlier channels, and Spearman's r between the two.

    `windows` are those of `sliding_window_diagnosis`; a layer's degradation is the mean over the windows that contain
    it. `outlier_report` is a channel report, or its `per_layer` part, keyed by module path; a layer of which it has no
    module counts no outliers. r is nan if either is the same for all layers.
    """
    counts = _outliers(outlier_report.get("per_layer", outlier_report))
    rows = [
        {"layer": layer, **means, "total_outliers": counts.get(layer, 0)}
        for layer, means in sorted(_layer_means(windows).items())
    ]
    r = spearman([row["total_outliers"] for row in rows], [row["degradation"] for row in rows])
    return rows, r


def _layer_means(windows: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Layer -> degradation, and sensitivity score where windows have one, averaged over its windows."""
    holding: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for name, window in windows.items():
        if missing := {"start_layer", "end_layer", "degradation"} - set(window):
            raise InputError(f"windows[{name!r}]: has no {' '.join(sorted(missing))}")
        for layer in range(window["start_layer"], window["end_layer"] + 1):
            holding[layer].append(window)
    return {
        layer: {
            metric: float(np.mean([window[metric] for window in found]))
            for metric in ("degradation", "sensitivity_score")
            if all(metric in window for window in found)
        }
        for layer, found in holding.items()
    }


def _outliers(per_layer: Mapping[str, Mapping[str, Any]]) -> dict[int, int]:
    """Layer -> outlier channels of all its modules; modules outside the blocks have no layer."""
    counts: dict[int, int] = defaultdict(int)
    for path, found in per_layer.items():
        if "num_outliers" not in found:
            raise InputError(f"outlier_report[{path!r}]: has no num_outliers")
        if (layer := _layer_of(path)) is not None:
            counts[layer] += found["num_outliers"]
    return counts


def _layer_of(path: str) -> int | None:
    """The block's index in a module path, which is its first number: later ones count experts or calls."""
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return None if match is None else int(match[1])
