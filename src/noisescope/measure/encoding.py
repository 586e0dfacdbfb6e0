"""Samples to rows of tokens, and the task that scores them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from .continuations import joined, split
from .fields import Choice, Continued, Conversation, Question, Sample, Text
from .tasks import ExactMatch, MultipleChoice, Task
from .texts import Encoder
from .token_rows import TokenRow, check_ids

__all__ = ["Encoded", "Limits", "encode", "fit", "task_of"]

_LONGEST_TEXT = 512
"""tokens that a text in a row is cut at where nothing is said: logits of more soon need gigabytes"""


@dataclass(frozen=True)
class Limits:
    """How long a row may be, and which tokens it may have. None: no limit known."""

    max_length: int | None = None
    model_window: int | None = None
    vocab_size: int | None = None

    @property
    def longest(self) -> int | None:
        """Tokens of a row."""
        return self.model_window if self.max_length is None else self.max_length

    def or_else(self, usual: int) -> int:
        """Tokens of a row for a kind of data that has a usual length."""
        if self.max_length is not None:
            return self.max_length
        return usual if self.model_window is None else min(usual, self.model_window)


@dataclass(frozen=True)
class Encoded:
    """A sample with its rows of tokens: one, or one per choice. A question has its prompt apart as well."""

    rows: tuple[TokenRow, ...]
    sample: Sample | None = None
    prompt: tuple[int, ...] = ()


def encode(sample: Sample, encoder: Encoder, limits: Limits) -> Encoded | None:
    """The sample's rows; None if they predict nothing."""
    if isinstance(sample, (Text, Conversation)):
        rows: tuple[TokenRow, ...] = (_text_row(sample, encoder, limits),)
    elif isinstance(sample, Continued):
        rows = (_continued(sample.where, sample.context, sample.continuation, encoder, limits),)
    elif isinstance(sample, Choice):
        rows = tuple(_continued(sample.where, sample.context, choice, encoder, limits) for choice in sample.choices)
    else:
        return _question(sample, encoder, limits)
    return Encoded(_known(rows, sample.where, limits), sample) if rows[0].predicts else None


def fit(row: TokenRow, *, where: str, limits: Limits) -> Encoded | None:
    """A row that came as tokens, cut at max_length; None if it predicts nothing."""
    if limits.max_length is None and limits.model_window is not None and len(row.ids) > limits.model_window:
        raise InputError(
            f"{where}: a row of {len(row.ids)} tokens, but the model's window is {limits.model_window}; "
            "pass max_length to cut it"
        )
    cut = TokenRow(row.ids[: limits.max_length], row.first)
    return Encoded(_known((cut,), where, limits)) if cut.predicts else None


def task_of(encoded: Sequence[Encoded]) -> Task | None:
    """The task of samples of one kind; None where the next token is all there is to predict."""
    choices = [one.sample for one in encoded if isinstance(one.sample, Choice)]
    if choices:
        lengths = tuple(tuple(len(choice) for choice in sample.choices) for sample in choices)
        return MultipleChoice(tuple(sample.gold for sample in choices), lengths)
    numbers = [one.sample.number for one in encoded if isinstance(one.sample, Question)]
    return ExactMatch(tuple(numbers), tuple(one.prompt for one in encoded)) if numbers else None


def _known(rows: tuple[TokenRow, ...], where: str, limits: Limits) -> tuple[TokenRow, ...]:
    return tuple(check_ids(row, where=where, vocab_size=limits.vocab_size) for row in rows)


def _text_row(sample: Text | Conversation, encoder: Encoder, limits: Limits) -> TokenRow:
    if isinstance(sample, Text):
        ids = [*encoder.beginning, *encoder.encode(sample.text)]
        first = max(1, len(encoder.beginning))
    else:
        ids, first = encoder.chat(sample.messages, reply=False, where=sample.where), 1
    return TokenRow(tuple(ids[: limits.or_else(_LONGEST_TEXT)]), first)


def _continued(where: str, context: str, continuation: str, encoder: Encoder, limits: Limits) -> TokenRow:
    space = "" if context[-1:].isspace() or continuation[:1].isspace() else " "
    return split(encoder, context, space + continuation).row(limit=limits.longest, where=where)


def _question(sample: Question, encoder: Encoder, limits: Limits) -> Encoded:
    if encoder.has_chat_template:
        prompt = encoder.chat(sample.messages, reply=True, where=sample.where)
        pair = joined(prompt, encoder.encode(sample.answer))
    else:
        space = "" if sample.plain[-1:].isspace() else " "
        pair = split(encoder, sample.plain, space + sample.answer)
        prompt = [*pair.beginning, *pair.context]
    row = pair.row(limit=limits.longest, where=sample.where)
    return Encoded(_known((row,), sample.where, limits), sample, tuple(prompt))
