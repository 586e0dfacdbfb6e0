"""Which channel of one linear is proportional to which channel of another, found by trying.

The producer's channels are multiplied by powers of two, which rounds nothing, and the consumer's input is looked at: if
a channel there is multiplied by exactly as much, it is proportional to one that got this power. A few trials spell out
the number of each producer's channel in base 4, so that seven of them tell sixteen thousand channels apart.

Single tokens are what is tried: a token that can attend only to itself has an attention of 1 however its query and key
are scaled, so that values are seen also where query, key and value come from one linear. Whether a fold holds for whole
sequences is for `proving` to say.

    v_proj -> o_proj       proportional; with grouped queries several inputs of o_proj to one channel of v_proj
    up_proj -> down_proj   proportional, times what the gate lets through
    fc1 -> relu -> fc2     proportional, since scales are positive
    c_fc -> gelu -> c_proj not proportional
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .replaying import BlockCall

__all__ = ["proportional_channels"]

BASE = 4
"""powers of two told apart in one trial"""
FAR = 12
"""octaves up: a value that is clipped somewhere is seen not to be proportional"""


def proportional_channels(call: BlockCall, producer: nn.Module, consumer: nn.Module, width: int) -> Tensor | None:
    """Of each input channel of the consumer, the producer's channel it is proportional to, or -1; None if of none.

    None also where an input depends on the producer in another way.
    """
    before = call.reaching(consumer, producer)
    for part in _parts(width):
        if _is_proportional(call, producer, consumer, before, part):
            return _spelled(call, producer, consumer, before, part)
    return None


def _parts(width: int) -> Iterator[Tensor]:
    """Where the proportional channels may be: anywhere, or in one half, as where gate and up are one linear."""
    numbers = torch.arange(width)
    yield numbers >= 0
    yield numbers >= width // 2
    yield numbers < width // 2


def _is_proportional(call: BlockCall, producer: nn.Module, consumer: nn.Module, before: Tensor, part: Tensor) -> bool:
    room = torch.finfo(before.dtype).max / float(before.abs().amax().clamp(min=1.0))
    far = min(FAR, int(torch.tensor(room).log2()) - 4)
    for octaves in (-1, far):
        exponents = octaves * part.long()
        found = _octaves(before, call.reaching(consumer, producer, torch.exp2(exponents.float())))
        if found is None or not bool((found == octaves).any()) or bool(((found != 0) & (found != octaves)).any()):
            return False
    return True


def _spelled(call: BlockCall, producer: nn.Module, consumer: nn.Module, before: Tensor, part: Tensor) -> Tensor | None:
    """The number of the producer's channel behind each input, digit by digit."""
    numbers, place = torch.arange(len(part)), 1
    channels = torch.zeros(before.shape[-1], dtype=torch.long)
    known = torch.ones_like(channels, dtype=torch.bool)
    while place < len(part):
        digits = numbers // place % BASE
        factors = torch.where(part, torch.exp2(-1.0 - digits), 1.0)
        found = _octaves(before, call.reaching(consumer, producer, factors))
        if found is None:
            return None
        known &= found != 0
        channels += place * (-1 - found).clamp(min=0)
        place *= BASE
    shared = len(channels[known].unique()) < int(known.sum())
    if not bool(known.any()) or (shared and not bool(known.all())):  # one that is always 0 here may share a channel too
        return None
    return torch.where(known, channels, -1)


def _octaves(before: Tensor, after: Tensor) -> Tensor | None:
    """By which power of two each channel was multiplied, 0 for one that is always 0; None if by anything else."""
    limits = torch.finfo(before.dtype)
    before, after = before.cpu().double(), after.cpu().double()
    counts = before.abs() > 2**6 * limits.tiny  # what is smaller may have lost bits on its way down
    ratio = torch.where(counts, after / before, 1.0)
    if not bool((ratio.isfinite() & (ratio > 0)).all()):
        return None
    octaves = ratio.log2().round()
    if bool(((ratio / torch.exp2(octaves) - 1).abs() > 8 * limits.eps).any()):
        return None
    low, high = (torch.where(counts, octaves, fill) for fill in (torch.inf, -torch.inf))
    least, most = low.amin(0), high.amax(0)
    seen = counts.any(0)
    if bool((seen & (least != most)).any()):
        return None
    return torch.where(seen, most, 0.0).long()
