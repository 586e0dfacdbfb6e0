"""`open_data`: from whatever holds the data to an evaluation set.

open_data(None, tokenizer)                        the built-in text, 50 windows of 32 tokens
open_data("test.jsonl", tokenizer)                rows, by the names of their fields (see `fields`)
open_data("test.jsonl:question", tokenizer)       that field, as text
open_data(["a text", "another"], tokenizer)
open_data(loader)                                 token batches need no tokenizer
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from ..errors import InputError
from ..specs import OPTIONS, checked
from .batches import EvaluationSet
from .choosing import choose, first
from .encoding import Encoded, Limits, encode, fit, task_of
from .fields import Choice, Question, samples
from .objects import Tokenised
from .reading import Prose, Rows
from .sources import find, names_file, require_file
from .texts import Encoder
from .token_rows import check_ids, pack
from .windows import DEFAULT_WINDOW, windows

__all__ = ["open_data", "require_text"]

T = TypeVar("T")


def open_data(
    source: object = None,
    tokenizer: object = None,
    *,
    n_samples: int = 50,
    batch_size: int = 16,
    max_length: int | None = None,
    seed: int = 0,
    model_window: int | None = None,
    vocab_size: int | None = None,
) -> EvaluationSet:
    """Token batches and the task of a data source: at most `n_samples` samples, chosen by `seed`, in their own order.

    Args:
        source: None for the built-in text; a file (.txt .md .jsonl .json .parquet), `file:field`, or the name of a hub
            dataset (org/name, org/name/configuration); or texts, rows, token batches, a DataLoader, a DataFrame, a
            dataset. An EvaluationSet is returned as it is.
        tokenizer: the model's own; needed where there is text.
        n_samples: windows of a plain text, rows of anything else. Fewer are used where there are fewer.
        batch_size: rows that go through the model together.
        max_length: tokens of a row. A plain text is cut into windows of this length (32), texts in rows are cut at
            their end (512), contexts on their left so that what is predicted stays (the model's window).
        seed: which samples; the same seed gives the same. Sources that may be endless give their first.
        model_window: the longest row that the model takes.
        vocab_size: the tokens that the model knows; others are an error.

    Rows of a single token predict nothing and are left out.
    """
    if isinstance(source, EvaluationSet):
        return source
    _check_numbers(n_samples=n_samples, batch_size=batch_size, max_length=max_length, model_window=model_window)
    limits = Limits(max_length, model_window, vocab_size)
    with torch.random.fork_rng(devices=()):  # a DataLoader draws a seed when it starts
        data, field = find(source)
        encoded = _encoded(data, field, tokenizer, limits, n_samples, seed)
    if not encoded:
        raise InputError(f"{data.label}: nothing to predict, expected rows of at least two tokens")
    if len(encoded) == 1:
        raise InputError(f"{data.label}: one sample, but intervals need at least two samples")
    rows = [row for one in encoded for row in one.rows]
    owners = [number for number, one in enumerate(encoded) for _ in one.rows]
    return EvaluationSet(data.name, pack(rows, owners, batch_size=batch_size), task_of(encoded))


def require_text(name: str) -> None:
    """Raises if the name means a file that is not there, or one of questions: before anything that takes time.

    Datasets of the hub are not looked at.
    """
    require_file(name)
    if not names_file(name):
        return
    data, field = find(name)
    one = next(samples(data, field), None) if isinstance(data, Rows) else None
    if isinstance(one, (Choice, Question)):
        raise InputError(f"{data.label}: has questions, expected text; name a field of text ({data.label}:FIELD)")


def _check_numbers(*, n_samples: int, batch_size: int, max_length: int | None, model_window: int | None) -> None:
    checked({"n_samples": n_samples, "batch_size": batch_size, "max_length": max_length}, OPTIONS)
    if max_length is not None and model_window is not None and max_length > model_window:
        raise InputError(f"max_length: got {max_length}, but the model's window is {model_window} tokens")


def _encoded(
    data: Prose | Rows | Tokenised, field: str | None, tokenizer: object, limits: Limits, n: int, seed: int
) -> list[Encoded]:
    def some(candidates: Iterable[T], make: Callable[[T], Encoded | None], *, endless: bool) -> list[Encoded]:
        return first(candidates, n, make=make) if endless else choose(candidates, n, seed=seed, make=make)

    if isinstance(data, Tokenised):
        return some(data.rows, lambda one: fit(one[1], where=one[0], limits=limits), endless=data.endless)
    if tokenizer is None:
        raise InputError(f"{data.label}: text needs a tokenizer; pass the model's")
    encoder = Encoder(tokenizer)
    if isinstance(data, Rows):
        return some(samples(data, field), lambda one: encode(one, encoder, limits), endless=data.endless)
    chosen = windows(data, encoder, n=n, length=limits.or_else(DEFAULT_WINDOW), seed=seed)
    return [Encoded((check_ids(row, where=data.label, vocab_size=limits.vocab_size),)) for row in chosen]
