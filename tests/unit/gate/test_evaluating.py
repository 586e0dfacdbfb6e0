"""What is measured: the figures of a diagnosis, at a known cost, with the same noise for all who ask the same."""

from typing import Any

import pytest
import torch

import noisescope as ns
from families import build, tokens
from noisescope.diagnosis import Diagnosis
from noisescope.diagnosis.accepting import data_for
from noisescope.diagnosis.progress import silent
from noisescope.errors import DoseVanished, InputError
from noisescope.gate import evaluating
from noisescope.gate.evaluating import MOST_PASSES, Evaluation, evaluate
from noisescope.keys import fingerprint_model
from noisescope.specs import DiagnosisSpec
from trained import fixture

Loaded = tuple[torch.nn.Module, Any]


def evaluated(model: torch.nn.Module, data: object, tokenizer: Any = None, **asked: Any) -> Evaluation:
    given = {name: asked.pop(name) for name in ("n_samples", "max_length", "batch_size") if name in asked}
    run = Diagnosis(model, data_for(model, data, tokenizer, **given), DiagnosisSpec("operator", **asked))
    return evaluate(run, progress=silent)


def test_it_is_what_a_diagnosis_measures(llama: Loaded) -> None:
    model, tokenizer = llama
    found = evaluated(model, None, tokenizer, n_samples=24, max_length=16, seed=3)
    spec = DiagnosisSpec("operator", seed=3)
    data = ns.open_data(None, tokenizer, n_samples=24, max_length=16)
    rows = Diagnosis(model, data, spec).operators
    assert list(found.noisy) == [row.name for row in rows]
    for row in rows:
        assert row.degradation.value == pytest.approx(1 - found.noisy[row.name].sum() / found.clean.sum())
    assert found.accuracy == pytest.approx(rows[0].result.clean.accuracy.value)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "gpt_neox"])
@pytest.mark.parametrize("rows", [2, 12])
def test_it_costs_at_most_twelve_forward_passes(family: str, rows: int) -> None:
    model = fixture(family)[0] if family in ("llama", "gpt2") else build(family)
    found = evaluated(model, [tokens(rows=rows)], batch_size=4)
    assert 1 + len(found.noisy) - 2 <= found.cost <= MOST_PASSES  # head and final norm resume behind the last block


def test_data_in_pieces_is_data_at_once(llama: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean counts; the noise is another draw in every piece, so that no two sequences share one."""
    model, tokenizer = llama
    given = {"n_samples": 24, "max_length": 16, "batch_size": 4, "operators": ("softmax",)}
    whole = evaluated(model, None, tokenizer, **given)
    monkeypatch.setattr(evaluating, "CHUNK", 2)
    pieces = evaluated(model, None, tokenizer, **given)
    assert pieces.clean.tolist() == whole.clean.tolist()
    assert pieces.asked.tolist() == whole.asked.tolist()
    assert pieces.noisy["softmax"][:8].tolist() == whole.noisy["softmax"][:8].tolist()
    monkeypatch.setattr(evaluating, "CHUNK", 1)
    text = {"input_ids": ns.open_data(None, tokenizer, n_samples=4, max_length=32).batches[0].input_ids}
    twice = evaluated(model, [text, text], batch_size=4, noise_scale=0.2, operators=("linear",))
    assert twice.clean[:4].tolist() == twice.clean[4:].tolist()
    assert twice.noisy["linear"][:4].tolist() != twice.noisy["linear"][4:].tolist()


def test_the_same_question_has_the_same_answer_and_the_model_is_left_alone(llama: Loaded) -> None:
    model, tokenizer = llama
    before = fingerprint_model(model)
    given = {"n_samples": 6, "max_length": 12, "noise_scale": 0.3, "operators": ("linear",)}
    one, other = (evaluated(model, None, tokenizer, **given) for _ in "12")
    assert one.noisy["linear"].tolist() == other.noisy["linear"].tolist()
    assert fingerprint_model(model) == before
    assert evaluated(model, None, tokenizer, **given, seed=1).noisy["linear"].tolist() != one.noisy["linear"].tolist()


def test_questions_with_choices_are_counted_by_question(llama: Loaded) -> None:
    model, tokenizer = llama
    rows = [{"query": f"{n} and one is", "choices": [str(n + 1), "the"], "gold": 0} for n in range(8)]
    found = evaluated(model, rows, tokenizer, operators=("softmax",))
    assert found.asked.tolist() == [1] * 8
    assert found.chance == 0.5


def test_answers_that_are_written_are_refused(llama: Loaded) -> None:
    model, tokenizer = llama
    rows = [{"question": f"{n} and one?", "answer": str(n + 1)} for n in range(3)]
    with pytest.raises(InputError, match="answers that the model writes cost more than the 12 forward passes"):
        evaluated(model, rows, tokenizer)


def test_too_many_places_are_refused(llama: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "MOST_PASSES", 5)
    with pytest.raises(InputError, match="operators: 10 places cost more than the 5 forward passes"):
        evaluated(llama[0], [tokens(rows=2)])


def test_noise_that_changes_nothing_is_an_error(llama: Loaded) -> None:
    with pytest.raises(DoseVanished, match="changed none of"):
        evaluated(llama[0], [tokens(rows=2)], noise_scale=1e-12, operators=("softmax",))


def test_an_output_that_is_not_finite_has_nothing_right(llama: Loaded) -> None:
    found = evaluated(llama[0], [tokens(rows=2)], noise_scale=1e30, operators=("linear",))
    assert found.noisy["linear"].tolist() == [0, 0]
    assert not found.failed
