"""What is said about outlier channels: by channel, by module, for the whole model, as values and as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..measure.readings import read

__all__ = ["ChannelReport", "Kind", "ModuleChannels", "OutlierChannel"]

Kind: TypeAlias = Literal["persistent", "massive", "occasional"]


@dataclass(frozen=True)
class OutlierChannel:
    """One channel above the threshold."""

    channel: int
    ratio: float
    persistence: float | None
    """share of samples in which it is an outlier; None where rows are no samples, or it was counted otherwise"""
    kind: Kind | None
    """massive: in most of these samples by a single token; else persistent: in half of all samples or more; else
    occasional"""

    @property
    def severity(self) -> str:
        """The reading of the ratio: MODERATE, HIGH or CRITICAL; "no outlier" where the threshold was set below 10."""
        return read("outlier ratio", self.ratio)


@dataclass(frozen=True)
class ModuleChannels:
    """What is known of the channels of one module."""

    site: str
    total_channels: int
    outliers: tuple[OutlierChannel, ...]
    """by channel"""
    max_ratio: float
    """of all its channels"""
    median_max: float
    global_max: float
    heavy_tailed: tuple[int, ...]
    """channels by the quantile rule: q99 / q50 of abs above its threshold"""
    fisher: tuple[int, ...] | None
    """channels above the 95th percentile of the Fisher diagonal of this module, where that was given"""
    samples: int | None
    """samples behind the persistence"""
    non_finite: int
    """values left out because they were infinite or not a number"""

    @property
    def outlier_percentage(self) -> float:
        """Of this module's own channels."""
        return 100 * len(self.outliers) / self.total_channels if self.total_channels else 0.0

    def as_json(self, *, details: bool = False) -> dict[str, Any]:
        """Plain values under the documented keys; lists are by channel. `details` adds what these do not say."""
        found: dict[str, Any] = {
            "outlier_indices": [outlier.channel for outlier in self.outliers],
            "num_outliers": len(self.outliers),
            "total_channels": self.total_channels,
            "outlier_percentage": self.outlier_percentage,
            "outlier_ratios": [outlier.ratio for outlier in self.outliers],
            "max_ratio": self.max_ratio,
            "median_max": self.median_max,
            "global_max": self.global_max,
        }
        if not details:
            return found
        return found | {
            "severities": [outlier.severity for outlier in self.outliers],
            "kinds": [outlier.kind for outlier in self.outliers],
            "persistence": [outlier.persistence for outlier in self.outliers],
            "samples": self.samples,
            "heavy_tailed_indices": list(self.heavy_tailed),
            "fisher_indices": None if self.fisher is None else list(self.fisher),
            "non_finite": self.non_finite,
        }


@dataclass(frozen=True)
class ChannelReport:
    """The channel level of a diagnosis: every module looked at, in the order of their numbers."""

    threshold: float
    modules: Mapping[str, ModuleChannels]
    """by module path; where a module has several sites, by the name of the site without its direction"""

    @property
    def total_outlier_channels(self) -> int:
        """Of all modules."""
        return sum(len(found.outliers) for found in self.modules.values())

    @property
    def outlier_percentage(self) -> float:
        """Outliers among all channels looked at."""
        looked_at = sum(found.total_channels for found in self.modules.values())
        return 100 * self.total_outlier_channels / looked_at if looked_at else 0.0

    def as_json(self, *, details: bool = False) -> dict[str, Any]:
        """Plain values under the documented keys: `summary` and `per_layer`."""
        return {
            "summary": {
                "layers_with_outliers": sum(bool(found.outliers) for found in self.modules.values()),
                "total_outlier_channels": self.total_outlier_channels,
            },
            "per_layer": {path: found.as_json(details=details) for path, found in self.modules.items()},
        }

    def __str__(self) -> str:
        lines = [_line(path, found, outlier) for path, found in self.modules.items() for outlier in found.outliers]
        if not lines:
            return f"no channel above {self.threshold:g} times the median, in {len(self.modules)} modules"
        cells = [("module", "channel", "ratio", "severity", "kind", "persistence"), *lines]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = (1, 2)
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        )


def _line(path: str, found: ModuleChannels, outlier: OutlierChannel) -> tuple[str, ...]:
    share, samples = outlier.persistence, found.samples or 0
    often = f"{round(share * samples)} of {samples} samples" if share is not None else "-"
    return path, str(outlier.channel), f"{outlier.ratio:.1f}", outlier.severity, outlier.kind or "-", often
