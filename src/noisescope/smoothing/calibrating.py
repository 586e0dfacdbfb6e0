"""What the groups' inputs are on calibration data: the largest of every channel, some whole tokens, and the stream.

One pass over the data. The largest values are of all tokens; those kept whole are drawn by the seed, the same for every
group, as many as fit the budget. Padding is neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, NonFinite
from ..injection import forwards_replaced
from ..keys import Key
from ..measure.batches import EvaluationSet
from .groups import Group

__all__ = ["Inputs", "calibrate"]

MOST_TOKENS = 512
"""kept whole: the error of a product is a mean over them, and hardly gains from more"""
FEWEST_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the consumers of one group are given."""

    largest: Tensor
    """abs, of each channel over all tokens, float32"""
    tokens: Tensor
    """some tokens x channels, float32"""
    stream: Tensor
    """of each of these tokens: the squared norm of the hidden state that leaves the block"""
    samples: Tensor
    """the sample that each of these tokens is from"""


class _Tally:
    """The inputs of one group while the data goes through the model."""

    def __init__(self) -> None:
        self.largest: Tensor | None = None
        self.tokens: list[Tensor] = []

    def fold(self, given: Tensor, real: Tensor, kept: Tensor) -> None:
        rows = given.detach().flatten(0, -2)
        if len(rows) != len(real):
            raise ModelError(f"a linear is given {len(rows)} rows for {len(real)} tokens, expected one for each")
        rows = rows.cpu()
        largest = rows[real].abs().amax(0).float()
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self.tokens.append(rows[kept].float())


class _Stream:
    """The hidden state behind one block, as its squared norm at the tokens that are kept."""

    def __init__(self) -> None:
        self.squares: list[Tensor] = []

    def fold(self, value: Any, kept: Tensor) -> None:
        hidden = (value if isinstance(value, Tensor) else value[0]).detach().flatten(0, -2).cpu()
        self.squares.append(hidden[kept].float().square().sum(1))


def calibrate(
    model: nn.Module,
    groups: Sequence[Group],
    data: EvaluationSet,
    *,
    blocks: Sequence[nn.Module],
    seed: int,
    budget_bytes: int,
    on_batch: Callable[[], None],
) -> list[Inputs]:
    """The inputs of each group, in their order."""
    tallies, streams = [_Tally() for _ in groups], [_Stream() for _ in blocks]
    chosen = _chosen(data, groups, seed, budget_bytes)
    device = next(model.parameters()).device
    samples: list[Tensor] = []
    first = 0
    for batch in data:
        real = batch.attention_mask.bool().flatten()
        number = torch.cumsum(real.long(), 0) - 1 + first
        kept = real & torch.isin(number, chosen)
        first += int(real.sum())
        owners = torch.tensor(batch.samples).unsqueeze(1).expand_as(batch.input_ids).flatten()
        samples.append(owners[kept])
        watched = {
            **{group.consumers[0]: _watching(tally, real, kept) for group, tally in zip(groups, tallies, strict=True)},
            **{block: _behind(stream, kept) for block, stream in zip(blocks, streams, strict=True)},
        }
        with torch.no_grad(), forwards_replaced(watched):
            model(**batch.inputs(device))
        on_batch()
    return [
        _inputs(group, tally, streams[group.layer], torch.cat(samples))
        for group, tally in zip(groups, tallies, strict=True)
    ]


def _watching(tally: _Tally, real: Tensor, kept: Tensor) -> Callable[..., Any]:
    def replacement(forward: Callable[..., Any], given: Tensor, *args: Any, **kwargs: Any) -> Any:
        tally.fold(given, real, kept)
        return forward(given, *args, **kwargs)

    return replacement


def _behind(stream: _Stream, kept: Tensor) -> Callable[..., Any]:
    def replacement(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = forward(*args, **kwargs)
        stream.fold(value, kept)
        return value

    return replacement


def _inputs(group: Group, tally: _Tally, stream: _Stream, samples: Tensor) -> Inputs:
    if tally.largest is None:
        raise ModelError(f"layer {group.layer}, {group.names[1]}: did not run on the data")
    if not bool(tally.largest.isfinite().all()):
        raise NonFinite(f"layer {group.layer}, {group.names[1]}: is given values that are not finite")
    return Inputs(tally.largest, torch.cat(tally.tokens), torch.cat(stream.squares), samples)


def _chosen(data: EvaluationSet, groups: Sequence[Group], seed: int, budget_bytes: int) -> Tensor:
    """The numbers of the tokens that are kept whole."""
    token_bytes = 4 * sum(len(group.channels) for group in groups)
    fit = max(FEWEST_TOKENS, budget_bytes // max(token_bytes, 1))
    order = torch.randperm(data.tokens, generator=Key(seed, "smoothing").generator())
    return order[: min(MOST_TOKENS, fit)]
