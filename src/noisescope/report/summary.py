"""The summary on a terminal: what is fragile, what to do, and how far the figures can be trusted.

Risk: MODERATE (score 55)                                38 forward passes

 where it is fragile       KL, nats/token        accuracy lost       severity
 1  head                   0.46 [0.44, 0.48]     21% [18, 24]        CRITICAL
...
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

__all__ = ["summarise"]

SHOWN = 8


def summarise(sections: Mapping[str, Any], *, most: int | None = SHOWN) -> str:
    """A dozen lines or two, from the sections of a report; of each list the first `most`, or with None all."""
    parts = [
        _headline(sections),
        _fragile(sections, most),
        _trust(sections),
        _thresholds(sections, most),
        _channels(sections),
        _advice(sections, most),
        _next(sections),
    ]
    return "\n\n".join(filter(None, parts))


def _headline(sections: Mapping[str, Any]) -> str:
    summary, cost = sections["executive_summary"], sections["cost"]["forward_pass_equivalents"]
    return f"Risk: {summary['overall_risk_level']} (score {summary['risk_score']:.0f})   {cost:.0f} forward passes"


def _fragile(sections: Mapping[str, Any], most: int | None) -> str:
    rows = [(name, row) for name, row in sections["operator_analysis"].items()]
    rows += [(_window_name(name, row), row) for name, row in sections["layer_analysis"].items()]
    rows.sort(key=lambda item: _rank(item[1]), reverse=True)
    if not rows:
        return ""
    head = ("", f"where it is fragile ({_noise(sections['config'])})", "KL, nats/token", "accuracy lost", "severity")
    return _table([head, *(_line(place, name, row) for place, (name, row) in enumerate(rows[:most], 1))])


def _noise(config: Mapping[str, Any]) -> str:
    of_layers = config.get("layer_noise_scale")
    return f"noise {config['noise_scale']:g}" + (f", of layers {of_layers:g}" if of_layers else "")


def _line(place: int, name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    if "failed" in row:
        return str(place), name, "-", "-", f"FAILED: {row['failed']}"
    low, high = row["degradation_interval"]
    known = not isnan(row["degradation"])  # without a right answer there is no share of them to lose
    lost = f"{row['degradation']:.1%} [{100 * low:.1f}, {100 * high:.1f}]" if known else "-"
    return str(place), name, _figure(row["kl"]), lost, row["severity"]


def _window_name(name: str, row: Mapping[str, Any]) -> str:
    more = row.get("amplification")
    return f"{name}  ({more['value']:.1f}x its layers)" if more else name


def _rank(row: Mapping[str, Any]) -> tuple[float, float]:
    if "failed" in row:
        return (float("inf"), float("inf"))
    known = row["severity"] != "inconclusive"
    return (row["degradation"] if known else 0.0, row["kl"]["value"])


def _trust(sections: Mapping[str, Any]) -> str:
    lines = []
    found = sections["map"].get("agreement") or {}
    if rank := found.get("spearman"):
        passes = "1 backward pass" if sections["map"]["passes"] == 1 else f"{sections['map']['passes']} backward passes"
        lines.append(
            f"map: {len(sections['map']['cells'])} cells from {passes}; agrees with injection: Spearman "
            f"{rank['value']:.2f} [{rank['low']:.2f}, {rank['high']:.2f}] over {found['checked']} checked cells, "
            f"predicted/measured {found['ratio_median']:.2f}"
        )
    if moved := sections["map"].get("corrections"):
        factors = ", ".join(f"{name} x{factor:.2f}" for name, factor in moved.items())
        lines.append(f"corrected by what was measured: {factors}")
    clean = sections["metrics"].get("clean")
    if clean and not clean["conclusive"]:
        lines.append(
            f"accuracy {clean['accuracy']['value']:.1%} is no better than chance ({clean['chance']:.1%}): "
            "accuracy lost is inconclusive, the KL ranks"
        )
    lines += [f"FAILED: {name}: {why}" for name, why in sections["metrics"].get("failed", {}).items()]
    return "\n".join(lines)


def _thresholds(sections: Mapping[str, Any], most: int | None) -> str:
    found = sections["metrics"].get("critical_thresholds", {})
    measured = [(name, row) for name, row in found.items() if row["how"] == "measured"]  # searched to the end
    if not measured:
        return ""
    measured.sort(key=lambda item: item[1]["critical_threshold"] or 1.0)
    words = [
        f"{name} {row['critical_threshold']:.3f}" if row["critical_threshold"] else f"{name} above 0.2"
        for name, row in measured[: most and 3]
    ]
    return f"critical noise (10% of accuracy lost): {', '.join(words)}"


def _channels(sections: Mapping[str, Any]) -> str:
    found = sections["channel_analysis"]
    if not found:
        return ""
    total, modules = found["summary"]["total_outlier_channels"], len(found["per_layer"])
    bad = sum(row["non_finite"] for row in found["per_layer"].values())
    also = f"; {bad} values were not finite and are left out" if bad else ""
    if not total or not modules:
        return f"channels: no outliers in {modules} modules{also}"
    name, worst = max(found["per_layer"].items(), key=lambda item: item[1]["max_ratio"])
    return f"channels: {total} outliers in {modules} modules, the largest {worst['max_ratio']:.0f}x in {name}{also}"


def _advice(sections: Mapping[str, Any], most: int | None) -> str:
    found = sections["recommendations"]
    if not found:
        return ""
    lines = [f"[{item['priority']}] {item['component']}: {item['action']} ({item['issue']})" for item in found[:most]]
    return "\n ".join(["what to do", *lines])


def _next(sections: Mapping[str, Any]) -> str:
    found = [(step["command"], step["why"]) for step in sections["next_steps"]]
    return "\n ".join(["next", *(f"{command}  # {why}" for command, why in found)]) if found else ""


def _figure(figure: Mapping[str, float]) -> str:
    return f"{figure['value']:.3g} [{figure['low']:.3g}, {figure['high']:.3g}]"


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(" " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
