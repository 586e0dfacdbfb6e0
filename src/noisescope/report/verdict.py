"""The one sentence that a report opens with: how much is at risk, and where most of it lies."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from .figures import figure, number, plural, share

__all__ = ["fragile_rows", "verdict"]


def verdict(sections: Mapping[str, Any]) -> str:
    """What was found, in one sentence that names the worst place and its figure."""
    rows = fragile_rows(sections)
    if not rows:
        return _of_channels(sections.get("channel_analysis") or {})
    broken = [name for name, row in rows if "failed" in row and row.get("non_finite", True)]
    if broken:
        return f"Noise at {_list(broken)} makes the output non-finite: nothing else matters until that is fixed."
    failed = [name for name, row in rows if "failed" in row]
    if len(failed) == len(rows):
        return f"Nothing could be measured: {_list(failed)} failed."
    rows = rows[len(failed) :]  # they come first
    name, worst = rows[0]
    noise = f"noise of scale {sections['config']['noise_scale']:g}"
    if worst["severity"] == "inconclusive" or not isfinite(worst["degradation"]):
        return (
            "Accuracy on this data is no better than chance, so the KL ranks: "
            f"{noise} moves the output most at {name}, by {figure(worst['kl'])} nats per token."
        )
    if worst["degradation"] <= 0:
        return f"Nowhere does {noise} cost accuracy; it moves the output most at {_by_kl(rows)}."
    lost = share(worst["degradation"], worst["degradation_interval"])
    return f"Most fragile is {name}: {noise} there costs {lost} of the accuracy."


def fragile_rows(sections: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Operators and windows together, the worst first; those that failed before all others."""
    rows = [*sections.get("operator_analysis", {}).items(), *sections.get("layer_analysis", {}).items()]
    return sorted(rows, key=lambda item: _rank(item[1]), reverse=True)


def _rank(row: Mapping[str, Any]) -> tuple[float, float]:
    if "failed" in row:
        return (float("inf"), float("inf"))
    known = row["severity"] != "inconclusive" and isfinite(row["degradation"])
    return (row["degradation"] if known else 0.0, row["kl"]["value"])


def _by_kl(rows: list[tuple[str, Mapping[str, Any]]]) -> str:
    name, row = max(rows, key=lambda item: item[1]["kl"]["value"])
    return f"{name}, by {figure(row['kl'])} nats per token"


def _of_channels(found: Mapping[str, Any]) -> str:
    modules = found.get("per_layer", {})
    if not modules:
        return "Nothing was measured."
    total = found["summary"]["total_outlier_channels"]
    if not total:
        return f"No outlier channels in {plural(len(modules), 'module')}."
    name, worst = max(modules.items(), key=lambda item: item[1]["max_ratio"])
    return (
        f"{plural(total, 'outlier channel')} in {plural(len(modules), 'module')}; "
        f"the largest is {number(worst['max_ratio'])} times the median, in {name}."
    )


def _list(names: list[str]) -> str:
    more = f" and {plural(len(names) - 3, 'other place')}" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
