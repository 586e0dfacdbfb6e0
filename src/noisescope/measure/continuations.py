"""A context and what follows it, as tokens: where one ends and the other begins, and what is cut where it is long.

Tokenised as lm-evaluation-harness does: spaces at the end of the context belong to the continuation, both are encoded
together, and the continuation is what follows as many tokens as the context has alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from .texts import Encoder
from .token_rows import TokenRow

__all__ = ["Pair", "joined", "split"]


@dataclass(frozen=True)
class Pair:
    """Tokens of the beginning, of the context and of the continuation."""

    beginning: tuple[int, ...]
    context: tuple[int, ...]
    continuation: tuple[int, ...]

    def row(self, *, limit: int | None, where: str) -> TokenRow:
        """One row that predicts the continuation; what does not fit is cut from the left of the context."""
        ids = (*self.context, *self.continuation)
        if not self.beginning and not self.context:
            raise InputError(f"{where}: no token before the continuation to predict it from")
        room = len(ids) if limit is None else limit - len(self.beginning)
        if room < len(self.continuation) + (not self.beginning):
            raise InputError(f"{where}: a continuation of {len(self.continuation)} tokens, expected fewer than {limit}")
        kept = (*self.beginning, *ids[max(0, len(ids) - room) :])
        return TokenRow(kept, len(kept) - len(self.continuation))


def split(encoder: Encoder, context: str, continuation: str) -> Pair:
    """The pair, both parts encoded together."""
    bare = context.rstrip()
    whole = encoder.encode(context + continuation)
    at = min(len(encoder.encode(bare)), len(whole) - 1)  # a merge over the seam leaves the continuation its last token
    return Pair(encoder.beginning, tuple(whole[:at]), tuple(whole[at:]))


def joined(context: Sequence[int], continuation: Sequence[int]) -> Pair:
    """The pair of parts encoded apart, for a context that a chat template has closed."""
    return Pair((), tuple(context), tuple(continuation))
