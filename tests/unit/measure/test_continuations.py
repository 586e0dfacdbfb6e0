"""Where a context ends and its continuation begins, and multiple choice scored by an independent loop."""

from typing import Any

import pytest
import torch
from fixture_models import bos_tokenizer, model, tokenizer

from noisescope.errors import InputError
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.continuations import Pair, joined, split
from noisescope.measure.opening import open_data
from noisescope.measure.texts import Encoder

ENCODER = Encoder(tokenizer())


def encode(text: str) -> tuple[int, ...]:
    return tuple(ENCODER.encode(text))


@pytest.mark.parametrize(
    ("context", "continuation"),
    [("The sky is", " blue"), ("The sky is ", "blue"), ("one two  ", "three"), ("ends in a line\n", "next")],
)
def test_spaces_at_the_end_of_the_context_belong_to_the_continuation(context: str, continuation: str) -> None:
    pair = split(ENCODER, context, continuation)
    assert pair.context == encode(context.rstrip())
    assert pair.context + pair.continuation == encode(context + continuation)


def test_a_merge_over_the_seam_counts_as_the_continuation() -> None:
    whole, alone = encode("the"), encode("th")
    assert len(whole) == 1  # "the" is one token
    pair = split(ENCODER, "in th", "e")
    assert pair.context + pair.continuation == encode("in the")
    assert pair.continuation
    assert len(split(ENCODER, "th", "e").continuation) == len(alone) == 1


def test_a_row_keeps_the_beginning_and_cuts_the_context_on_its_left() -> None:
    pair = Pair((1,), (2, 3, 4, 5), (6, 7))
    assert pair.row(limit=None, where="").ids == (1, 2, 3, 4, 5, 6, 7)
    assert pair.row(limit=5, where="").ids == (1, 4, 5, 6, 7)
    assert pair.row(limit=5, where="").first == 3
    assert pair.row(limit=3, where="").ids == (1, 6, 7)
    assert joined([2, 3], [4]).row(limit=2, where="").ids == (3, 4)


@pytest.mark.parametrize(
    ("pair", "limit", "complaint"),
    [
        (Pair((1,), (2,), (3, 4)), 2, "a continuation of 2 tokens, expected fewer than 2"),
        (Pair((), (2,), (3, 4)), 2, "a continuation of 2 tokens, expected fewer than 2"),
        (Pair((), (), (3, 4)), None, "no token before the continuation to predict it from"),
    ],
)
def test_a_continuation_needs_a_token_before_it(pair: Pair, limit: int | None, complaint: str) -> None:
    with pytest.raises(InputError, match=f"^a:1: {complaint}$"):
        pair.row(limit=limit, where="a:1")


SAMPLES = [
    {"query": "The assignment", "choices": ["statement", "banana", "is used to"], "gold": 0},
    {"query": "A class definition is an executable", "choices": ["moon", "statement."], "gold": 1},
    {"query": "If the object is not", "choices": ["green", "found, an exception is raised", "x"], "gold": 1},
    {"query": "The value of the", "choices": ["expression", "zebra", "expression list"], "gold": 2},
    {"query": "Raised when an", "choices": ["attribute reference fails", "qqq"], "gold": 0},
    {"query": "for the", "choices": ["same reason", "jjjjj", "of of of of"], "gold": 2},
]


def log_likelihood(context: str, choice: str, words: Any) -> float:
    """log p(choice | context), one token at a time, each from a forward pass of its own over the unpadded prefix."""
    prefix = [1] if words is not tokenizer() else []
    whole = prefix + words.encode(f"{context} {choice}", add_special_tokens=False)
    start = len(prefix + words.encode(context, add_special_tokens=False))
    total = 0.0
    for at in range(start, len(whole)):
        with torch.no_grad():
            logits = model()(torch.tensor([whole[:at]])).logits[0, -1].double()
        total += float(logits[whole[at]] - torch.logsumexp(logits, 0))
    return total


def batched(data: EvaluationSet) -> list[float]:
    """The sum over `predicted` of each row."""
    found = []
    for batch in data:
        with torch.no_grad():
            logits = model()(**batch.inputs()).logits[:, :-1].double()
        picked = logits.log_softmax(-1).gather(2, batch.input_ids[:, 1:, None])[..., 0]
        found += (picked * batch.predicted).sum(1).tolist()
    return found


@pytest.mark.parametrize("words", [tokenizer(), bos_tokenizer()], ids=["plain", "bos"])
def test_choices_are_scored_as_by_a_simple_loop(words: Any) -> None:
    samples = SAMPLES if words is tokenizer() else SAMPLES[:2]
    data = open_data(samples, words, batch_size=4)
    slow = [[log_likelihood(s["query"], choice, words) for choice in s["choices"]] for s in samples]
    fast = batched(data)
    assert fast == pytest.approx([value for sample in slow for value in sample], abs=1e-4)
    if samples is not SAMPLES:
        return
    right = [max(range(len(v)), key=v.__getitem__) == s["gold"] for v, s in zip(slow, SAMPLES, strict=True)]
    per_character = [
        [value / len(choice) for value, choice in zip(v, s["choices"], strict=True)]
        for v, s in zip(slow, SAMPLES, strict=True)
    ]
    normalised = [
        max(range(len(v)), key=v.__getitem__) == s["gold"] for v, s in zip(per_character, SAMPLES, strict=True)
    ]
    assert data.task.correct(fast, normalised=False).tolist() == right
    assert data.task.correct(fast).tolist() == normalised
    assert 0 < sum(right) < len(right)
    assert right != normalised
