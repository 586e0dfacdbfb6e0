"""The format map: the KL of every number format at every weight, from one pass of gradients.

A format's error is not random: all elements of a weight move together, and for every token alike. With e = Q(W) - W,
and G the gradient by W of the log-likelihood of labels that are sampled from the model's own output, summed over one
sequence, to second order

    KL = 1/2 E[ <G, e>^2 ] / predicted tokens of a sequence,

one number <G, e> a sequence. G is one product more than a backward pass takes; each format is then an inner product
with it. The same for activations, with e = Q(x) - x and the gradient by x. Numbers of weights that change together are
added before they are squared; layers add up afterwards.

The diagonal estimate that other tools use, 1/2 E[ sum G^2 e^2 ], leaves all of the cross terms out. It is there to be
compared with.
"""

from collections.abc import Callable, Collection

import numpy as np
from torch import nn

from ..diagnosis.mapping import score_of_sampled
from ..errors import InputError
from ..keys import Key
from ..measure.labels import Tokens, as_batches
from ..noise.formats import Format, parse_format
from ..sites import Layout
from .format_map import FormatMap, Place
from .gathering import CACHE_BYTES, Asked, Gathering, Gradient
from .weights import Weight, find_weights

__all__ = ["map_formats"]


def map_formats(
    model: nn.Module,
    data: Tokens,
    formats: Collection[str | Format],
    *,
    activations: Collection[str | Format] = (),
    draws: int = 1,
    diagonal: bool = False,
    include: Collection[str] = (),
    seed: int = 0,
    layout: Layout | None = None,
    blocks: str | None = None,
    cache_bytes: int = CACHE_BYTES,
    progress: Callable[[], None] | None = None,
) -> FormatMap:
    """The effect of every format at every weight, with standard errors over sequences.

    Use many short sequences: the estimate is a mean of squares, and its relative error is sqrt(2 / sequences). Each
    batch takes one forward, and for each draw of labels a backward pass and one product more for each weight. No
    parameter's gradient is kept, and nothing of the model is changed. Weights whose module was not called are in
    `left_out`, and no place of the map: nothing is known of a format there.

    Args:
        model: a causal language model in 16 or 32 bit, in eval mode.
        data: batches of tokens, or an evaluation set.
        formats: of the weights.
        activations: formats of what the weights are multiplied with.
        draws: of labels, for each sequence.
        diagonal: also the estimate that leaves cross terms out, to compare.
        include: `head`, which is left out otherwise.
        seed: of the labels, and of stochastic rounding.
        layout: of the model, if it is known already.
        blocks: where the blocks are, for a model whose structure is not recognised.
        cache_bytes: memory for rounding errors.
        progress: called after each batch.
    """
    layout = layout or Layout.of(model, blocks=blocks)
    if "embed" in include:
        raise InputError(
            "include: embed has no map; it is emulated only, with quantised(model, ..., include=['embed'])"
        )
    weights = find_weights(layout, include=include)
    asked = Asked(tuple(map(parse_format, formats)), tuple(map(parse_format, activations)), diagonal, seed)
    gathering = Gathering(weights, asked, cache_bytes=cache_bytes)
    for number, batch in enumerate(as_batches(data)):
        keys = [Key(seed, f"labels#{draw}", step=number) for draw in range(draws)]
        gathering.run(model, batch, [_of_sampled(key) for key in keys], layout)
        if progress is not None:
            progress()
    return _read(gathering, draws)


def _of_sampled(key: Key) -> Gradient:
    return lambda logits, batch: score_of_sampled(logits, batch, key)


def _read(gathering: Gathering, draws: int) -> FormatMap:
    """Everything that was gathered."""
    called = gathering.called
    return FormatMap(
        tuple(_place(weight, gathering) for weight in called.values()),
        gathering.asked.names,
        gathering.projections,
        np.concatenate(gathering.sequences),
        np.concatenate(gathering.tokens),
        gathering.squares,
        # a backward pass is two forwards, the gradients by weights one more
        cost=1.0 + 3.0 * draws,
        left_out=tuple(path for path in gathering.weights if path not in called),
    )


def _place(weight: Weight, gathering: Gathering) -> Place:
    forms = dict(zip(gathering.asked.names, gathering.asked.weights, strict=False))
    bits = {name: form.bits(weight.shape, axis=weight.axis) for name, form in forms.items()}
    return Place(weight.path, weight.layer, gathering.group(weight), weight.size, weight.axis, bits)
