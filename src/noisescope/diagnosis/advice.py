"""From findings to what to do: the risk score, and recommendations with their evidence.

    risk score = 30 per critical operator + 25 per avalanche point + 5 per percent of outlier channels

A recommendation has a priority, a component, the issue, an action, the figure it rests on and a command that looks
closer; the worst come first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..measure.readings import read
from .channel_report import ChannelReport, ModuleChannels
from .commands import Commands
from .rows import Row

__all__ = ["critical_operators", "recommendations", "risk_score"]

PRIORITIES = ("CRITICAL", "HIGH", "MEDIUM", "LOW")

_SOFTMAX = "keep attention scores in higher precision and check the accuracy of the exponential's table"
_NORM = "check the epsilon, and compute the variance in 32 bit"
_PRODUCT = "accumulate in 32 bit"
_ACTIVATION = "check the approximation of the activation function"
_ACTIONS = {
    "softmax": _SOFTMAX,
    "layer_norm": _NORM,
    "rms_norm": _NORM,
    "final_norm": _NORM,
    "linear": _PRODUCT,
    "matmul": _PRODUCT,
    "bmm": _PRODUCT,
    "attention": _PRODUCT,
    "silu": _ACTIVATION,
    "gelu": _ACTIVATION,
    "residual": "keep the residual stream in 16 bit or more",
    "embedding": "keep the embedding in 16 bit",
    "embed": "keep the embedding in 16 bit",
    "head": "keep the output head in 16 bit",
}


def critical_operators(rows: Iterable[Row]) -> list[str]:
    """Rows whose sensitivity score reads CRITICAL, the worst first."""
    found = [row for row in rows if row.broken or (row.conclusive and _reading(row) == "CRITICAL")]
    return [row.name for row in sorted(found, key=lambda row: row.rank, reverse=True)]


def risk_score(critical: int, avalanches: int, outlier_percentage: float) -> float:
    """The documented score; it reads HIGH above 100, MODERATE above 50, else LOW."""
    return 30.0 * critical + 25.0 * avalanches + 5.0 * outlier_percentage


def recommendations(
    rows: Iterable[Row],
    avalanches: Sequence[Mapping[str, Any]],
    channels: ChannelReport | None,
    commands: Commands,
) -> list[dict[str, Any]]:
    """What to do, sorted by priority and then by effect."""
    found = [
        *_for_operators(rows, commands),
        *_for_windows(avalanches, commands),
        *_for_channels(channels, commands),
    ]
    found.sort(key=lambda item: (PRIORITIES.index(item[1]["priority"]), -item[0]))
    return [advice for _, advice in found]


def _for_operators(rows: Iterable[Row], commands: Commands) -> list[tuple[float, dict[str, Any]]]:
    found = []
    for row in rows:
        reading = "CRITICAL" if row.broken else _reading(row) if row.conclusive else "ROBUST"
        if reading == "ROBUST":
            continue
        loss = row.degradation
        priority = ("CRITICAL" if loss.value > 0.20 else "HIGH") if reading == "CRITICAL" else "MEDIUM"
        issue = (
            "noise here makes the output non-finite"
            if row.broken
            else f"loses {loss.value:.1%} of accuracy at noise scale {row.result.point.noise_scale:g}"
        )
        evidence = f"degradation {loss.value:.3f} [{loss.low:.3f}, {loss.high:.3f}], KL {row.kl} nats per token"
        command = commands.closer_to_operator(row.name)
        found.append((loss.value, _advice(priority, row.name, issue, _ACTIONS[row.name], evidence, command)))
    return found


def _for_windows(avalanches: Sequence[Mapping[str, Any]], commands: Commands) -> list[tuple[float, dict[str, Any]]]:
    action = "raise the precision of these layers, or train with noise targeted at them"
    return [
        (
            point["degradation"],
            _advice(
                point["severity"],
                point["layer_range"],
                "avalanche point: damage spreads from here",
                action,
                f"degradation {point['degradation']:.3f}, at least 1.5 times that of the nearest separate windows",
                commands.closer_to_layers(point["layer_range"]),
            ),
        )
        for point in avalanches
    ]


def _for_channels(channels: ChannelReport | None, commands: Commands) -> list[tuple[float, dict[str, Any]]]:
    if channels is None or not channels.total_outlier_channels:
        return []
    worst = sorted(
        (item for item in channels.modules.items() if item[1].outlier_percentage > 0.5),
        key=lambda item: -item[1].max_ratio,
    )
    found, command = [], commands.closer_to_channels()
    for path, module in worst[:3]:
        ratio = module.max_ratio
        priority, action, step = (
            ("HIGH", "SmoothQuant with alpha 0.75, or one chosen for each group", commands.smoothing())
            if ratio > 50
            else ("MEDIUM", "quantise per channel", command)
            if ratio >= 20
            else ("LOW", "quantise per channel where it is free", command)
        )
        evidence = (
            f"{len(module.outliers)} of {module.total_channels} channels above {channels.threshold:g}x the median"
            f"{_by_single_tokens(module)}"
        )
        issue = f"outlier channels up to {ratio:.0f}x"
        found.append((ratio, _advice(priority, path, issue, action, evidence, step)))
    fits = "SmoothQuant for W8A8, AWQ for W4A16, OmniQuant for W4A4"
    evidence = (
        f"{channels.total_outlier_channels} outlier channels, {channels.outlier_percentage:.2f}% of those looked at"
    )
    issue = "activations have outlier channels"
    found.append((0.0, _advice("LOW", "quantisation", issue, f"choose by format: {fits}", evidence, command)))
    return found


def _by_single_tokens(module: ModuleChannels) -> str:
    """Scaling channels does little for what a single token of a sequence does."""
    massive = sum(outlier.kind == "massive" for outlier in module.outliers)
    return f", {massive} of them by single tokens, for which scaling a channel does little" if massive else ""


def _reading(row: Row) -> str:
    return read("sensitivity score", row.sensitivity.value)


def _advice(priority: str, component: str, issue: str, action: str, evidence: str, command: str) -> dict[str, Any]:
    return {
        "priority": priority,
        "component": component,
        "issue": issue,
        "action": action,
        "evidence": evidence,
        "command": command,
    }
