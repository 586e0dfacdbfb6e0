"""The table that a capture prints: one line a site.

site                                              channels  tokens    max  median  top channel
model.layers.9.self_attn.o_proj.linear.0.forward       576    1024   4.21    0.87          301
"""

from collections.abc import Mapping

from .channels import ChannelStatistics

__all__ = ["table"]

_HEAD = ("site", "channels", "tokens", "max", "median", "top channel", "not finite")


def table(statistics: Mapping[str, ChannelStatistics]) -> str:
    """For each site the largest absolute value, the median over channels of theirs, and whose the largest is.

    The last column is left out where all values were finite.
    """
    lines = [_HEAD, *(_line(name, found) for name, found in statistics.items())]
    shown = len(_HEAD) if any(found.non_finite for found in statistics.values()) else len(_HEAD) - 1
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:shown], widths[1:shown])]) for line in lines
    )


def _line(name: str, found: ChannelStatistics) -> tuple[str, ...]:
    if not found.count.any():
        return (name, str(found.channels), "0", "-", "-", "-", str(found.non_finite))
    top = int(found.max_abs.nan_to_num(-1.0).argmax())
    return (
        name,
        str(found.channels),
        str(found.tokens),
        f"{float(found.max_abs[top]):.4g}",
        f"{float(found.max_abs.nanmedian()):.4g}",
        str(top),
        str(found.non_finite),
    )
