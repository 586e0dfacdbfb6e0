"""A text as windows of equal length, side by side, of which some are chosen."""

from ..errors import InputError
from .choosing import choose
from .reading import Prose
from .texts import Encoder
from .token_rows import TokenRow

__all__ = ["DEFAULT_WINDOW", "windows"]

DEFAULT_WINDOW = 32
"""tokens: estimates come from how sequences differ, so many short ones tell more than a few long ones"""


def windows(prose: Prose, encoder: Encoder, *, n: int, length: int, seed: int) -> list[TokenRow]:
    """n windows of `length` tokens each, in reading order; what the tokenizer begins a text with begins each of them.

    The end of the text that fills no window is left out.
    """
    start = encoder.beginning
    step = length - len(start)
    if step < 1:
        raise InputError(f"max_length: got {length}, expected more than the {len(start)} tokens that begin every text")
    ids = encoder.encode_long(prose.text)
    count = len(ids) // step
    if not count:
        raise InputError(
            f"{prose.label}: {len(ids)} tokens, fewer than one window of {length}; pass a longer text or a smaller "
            "max_length"
        )
    chosen = choose(range(count), n, seed=seed, make=lambda index: index)
    return [TokenRow((*start, *ids[at * step : (at + 1) * step]), max(1, len(start))) for at in chosen]
