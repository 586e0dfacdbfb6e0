"""Outlier channels: a few channels of a module far larger than the rest, which is what low precision breaks on.

    module                          channel  ratio  severity  kind        persistence
    model.layers.3.mlp.down_proj         12   61.3  CRITICAL  persistent  64 of 64 samples
    model.layers.3.mlp.down_proj         40   18.2  MODERATE  massive     64 of 64 samples

The ratio of a channel is its largest abs over the median, over the module's channels, of theirs. The median is the
lower one of two; should it be 0, as where most channels are dead, it is that of the channels that are not 0, so that
a ratio is never infinite, and 0 where all are 0. What a channel is in one sample is defined by `capturing.persistence`.
Reads a capture; runs no model.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite

import torch
from torch import Tensor

from ..capturing import Capture, ChannelStatistics, Persistence
from ..capturing.persistence import lower_median
from ..errors import InputError, NothingMatched
from ..sites import Site
from .channel_report import ChannelReport, Kind, ModuleChannels, OutlierChannel

__all__ = ["THRESHOLD", "detect"]

THRESHOLD = 10.0
"""ratio above which a channel is an outlier"""
TAIL_THRESHOLD = 5.0
"""q99 / q50 of abs above which a channel is heavy-tailed; it is 3.8 for a normal distribution"""
FISHER_SHARE = 0.95
"""channels above this quantile of their module's Fisher diagonal are named"""


def detect(
    captured: Capture,
    *,
    threshold: float | None = None,
    tail_threshold: float = TAIL_THRESHOLD,
    fisher: Mapping[str, Tensor] | None = None,
) -> ChannelReport:
    """The outlier channels of every site that a capture has seen.

    Args:
        captured: a capture with statistics; with `persistence=` too, if outliers are to be told apart by kind.
        threshold: the ratio above which a channel is an outlier. None means the one persistence was counted at, else
            10. At another one ratios are right as well, but persistence and kind are not known.
        tail_threshold: q99 / q50 of abs above which a channel is heavy-tailed.
        fisher: per-channel Fisher diagonals by site name or module path, such as a map's `channels`; sites without
            one are passed over, but not all of them.

    Example:
        >>> with capture(model, persistence=10.0) as captured:  # doctest: +SKIP
        ...     model(**batch)
        >>> print(detect(captured))  # doctest: +SKIP
    """
    if threshold is None:
        threshold = captured.persistence_threshold or THRESHOLD
    ratio = _check(threshold, "threshold")
    tail = _check(tail_threshold, "tail_threshold")
    statistics, persistence = captured.statistics, captured.persistence
    if not statistics:
        raise NothingMatched("outlier channels: the capture has no statistics; run the model inside it")
    names = _names(captured.sites[name] for name in statistics)
    fishers = _fishers(fisher, names) if fisher is not None else {}
    modules = {
        path: _module(site, statistics[site], persistence.get(site), fishers.get(site), threshold=ratio, tail=tail)
        for site, path in sorted(names.items(), key=lambda item: _by_numbers(item[1]))
    }
    return ChannelReport(ratio, modules)


def _check(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise InputError(f"{what}: got {value!r}, expected a number > 0")
    return float(value)


def _names(sites: Iterable[Site]) -> dict[str, str]:
    """Site name -> how the report calls it."""
    known = list(sites)
    often = Counter(site.module for site in known)
    return {site.name: site.module if often[site.module] == 1 else site.name.removesuffix(".forward") for site in known}


def _by_numbers(path: str) -> list[tuple[int, str]]:
    """A key that puts layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def _fishers(given: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    found = {site: given.get(site, given.get(path)) for site, path in names.items()}
    if all(diagonal is None for diagonal in found.values()):
        raise NothingMatched(f"fisher: none of its {len(given)} entries is named like a captured site or its module")
    return {site: torch.as_tensor(diagonal) for site, diagonal in found.items() if diagonal is not None}


def _module(
    site: str,
    found: ChannelStatistics,
    persistence: Persistence | None,
    fisher: Tensor | None,
    *,
    threshold: float,
    tail: float,
) -> ModuleChannels:
    if persistence is not None and persistence.threshold != threshold:
        persistence = None
    median, sizes = float(lower_median(found.max_abs)), found.max_abs.nan_to_num(0.0)
    ratios = sizes / median if median else torch.zeros_like(sizes)
    return ModuleChannels(
        site=site,
        total_channels=found.channels,
        outliers=tuple(
            OutlierChannel(channel, float(ratios[channel]), *_habits(persistence, channel))
            for channel in _where(ratios > threshold)
        ),
        max_ratio=float(ratios.max()),
        median_max=median,
        global_max=float(sizes.max()),
        heavy_tailed=_where(found.q99_abs > tail * found.q50_abs),
        fisher=_high_fisher(site, fisher, found.channels) if fisher is not None else None,
        samples=persistence.samples if persistence is not None else None,
        non_finite=found.non_finite,
    )


def _habits(persistence: Persistence | None, channel: int) -> tuple[float | None, Kind | None]:
    """Persistence and kind of a channel that is an outlier."""
    if persistence is None or not persistence.samples:
        return None, None
    share = float(persistence.share[channel])
    if 2 * int(persistence.single_token_samples[channel]) > int(persistence.outlier_samples[channel]):
        return share, "massive"
    return share, "persistent" if share >= 0.5 else "occasional"


def _high_fisher(site: str, diagonal: Tensor, channels: int) -> tuple[int, ...]:
    if diagonal.shape != (channels,):
        raise InputError(
            f"fisher: {site} got shape {tuple(diagonal.shape)}, expected one number for each of {channels}"
        )
    diagonal = diagonal.detach().cpu().double()
    return _where(diagonal > diagonal.quantile(FISHER_SHARE))


def _where(chosen: Tensor) -> tuple[int, ...]:
    return tuple(chosen.nonzero().flatten().tolist())
