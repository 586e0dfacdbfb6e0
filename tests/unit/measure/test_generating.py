"""Answers that are written: the same in a batch as alone, greedy whatever the model's settings say."""

import copy
import logging
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from fixture_models import NAMES, model, tokenizer

from noisescope import RelativeGaussian, inject
from noisescope.errors import InputError, ModelError
from noisescope.measure.generating import generate_correct, window_of
from noisescope.measure.opening import open_data
from noisescope.measure.tasks import ExactMatch

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [
    "The assignment statement",
    "If",
    "A class definition defines a class object. The inheritance list usually gives a list of base classes",
    "Raised when an import fails: 12",
    "3 4 5",
]


def task(name: str, prompts: list[str] = PROMPTS) -> ExactMatch:
    ids = tuple(tuple(tokenizer(name).encode(prompt)) for prompt in prompts)
    return ExactMatch(tuple(Decimal(7) for _ in ids), ids)


def greedy(name: str, prompt: str, new: int) -> str:
    """One prompt, a full forward pass for every token, no padding, no cache."""
    ids = tokenizer(name).encode(prompt)
    start = len(ids)
    while len(ids) < start + new:
        with torch.no_grad():
            token = int(model(name)(torch.tensor([ids])).logits[0, -1].argmax())
        if token == 2:
            break
        ids.append(token)
    return tokenizer(name).decode(ids[start:], skip_special_tokens=True)


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_change_an_answer(name: str) -> None:
    slow = [greedy(name, prompt, 12) for prompt in PROMPTS]
    for batch_size in (2, 5):
        answers = generate_correct(model(name), task(name), tokenizer(name), batch_size=batch_size, max_new_tokens=12)
        assert answers.texts == slow
    assert len(set(slow)) == len(PROMPTS)


def test_the_last_number_of_the_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = task("llama")
    written = iter(["it is 7.", "7 or 8", "no", "$7.00", "\n7\nQuestion: what is 9?"])
    monkeypatch.setattr(type(tokenizer()), "decode", lambda *args, **options: next(written))
    correct, texts = generate_correct(model(), asked, tokenizer(), max_new_tokens=2)
    assert correct.tolist() == [1, 0, 0, 1, 1]
    assert texts[-1] == "\n7"


def sampling() -> Any:
    noisy = copy.deepcopy(model())
    noisy.generation_config.update(
        do_sample=True,
        temperature=5.0,
        top_k=3,
        num_beams=3,
        repetition_penalty=3.0,
        no_repeat_ngram_size=2,
        min_new_tokens=9,
        max_length=5,
        num_return_sequences=2,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return noisy


def test_the_models_own_settings_neither_matter_nor_change(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, asked = sampling(), task("llama")
    capfd.readouterr()
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("transformers"), "level", logging.INFO)
    settings, flags = other.generation_config.to_dict(), [m.training for m in other.modules()]
    state = torch.get_rng_state()
    answers = generate_correct(other, asked, tokenizer(), max_new_tokens=12)
    assert answers.texts == generate_correct(model(), asked, tokenizer(), max_new_tokens=12).texts
    assert other.generation_config.to_dict() == settings
    assert [m.training for m in other.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert not said
    assert capfd.readouterr() == ("", "")


def test_an_answer_ends_at_the_models_end_token() -> None:
    other = copy.deepcopy(model())
    whole = generate_correct(other, task("llama"), tokenizer(), max_new_tokens=12).texts
    ids = tokenizer().encode(whole[0])
    other.generation_config.eos_token_id = [2, ids[3]]
    cut = generate_correct(other, task("llama"), tokenizer(), max_new_tokens=12).texts
    assert cut[0] == tokenizer().decode(ids[: ids.index(ids[3])])


def test_prompt_and_answer_stay_within_the_models_window() -> None:
    assert window_of(model("gpt2")) == 256  # it has no positions beyond and would fail
    other = copy.deepcopy(model("gpt2"))
    other.generation_config.eos_token_id = []
    calls: list[int] = []
    other.register_forward_hook(lambda *args: calls.append(1))
    generate_correct(other, task("gpt2", ["and then the next one " * 60, "short"]), tokenizer("gpt2"))
    assert len(calls) == 128


def test_under_noise_the_answers_are_those_of_the_noisy_model() -> None:
    clean = generate_correct(model(), task("llama"), tokenizer(), max_new_tokens=12)
    with inject(model(), RelativeGaussian(0.5), seed=0) as run:
        noisy = generate_correct(model(), task("llama"), tokenizer(), max_new_tokens=12)
    assert noisy.texts != clean.texts
    assert run.stats.rows
    assert generate_correct(model(), task("llama"), tokenizer(), max_new_tokens=12).texts == clean.texts


def test_from_a_file_to_scores() -> None:
    rows = [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(3)]
    data = open_data(rows, tokenizer())
    answers = generate_correct(model(), data.task, tokenizer(), batch_size=2, max_new_tokens=8)
    assert answers.correct.shape == (3,)
    assert np.array_equal(answers.correct, data.task.correct(answers.texts))


def test_a_model_that_cannot_write_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^LlamaModel: cannot write answers, expected a causal language model$"):
        generate_correct(model().model, task("llama"), tokenizer())
    assert window_of(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize("name", ["batch_size", "max_new_tokens"])
def test_numbers_that_cannot_be_meant(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: got 0, expected a whole number of at least 1$"):
        generate_correct(model(), task("llama"), tokenizer(), **{name: 0})
