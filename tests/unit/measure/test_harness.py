"""A task of lm-evaluation-harness over a local file, clean and under noise."""

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_models import model, tokenizer

from noisescope import RelativeGaussian, inject
from noisescope.errors import InputError, MissingExtra
from noisescope.measure.harness import HarnessScore, run_task
from noisescope.measure.opening import open_data

pytestmark = pytest.mark.usefixtures("one_thread")

SAMPLES = [
    {"query": "The assignment", "choices": ["statement", "banana", "is used to"], "gold": 0},
    {"query": "A class definition is an executable", "choices": ["moon", "statement."], "gold": 1},
    {"query": "If the object is not", "choices": ["green", "found, an exception is raised", "x"], "gold": 1},
    {"query": "The value of the", "choices": ["expression", "zebra", "expression list"], "gold": 2},
    {"query": "Raised when an", "choices": ["attribute reference fails", "qqq"], "gold": 0},
    {"query": "for the", "choices": ["same reason", "jjjjj", "of of of of"], "gold": 2},
]
CHOICES = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_choice: choices
doc_to_target: gold
metric_list:
  - metric: acc
  - metric: acc_norm
"""
PERPLEXITY = """
task: local_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{query}}}}"
metric_list:
  - metric: word_perplexity
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two tasks over one file; the cache of `datasets` is beside it."""
    pytest.importorskip("lm_eval")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks pip for seconds
    monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file = tmp_path / "samples.jsonl"
    file.write_text("\n".join(map(json.dumps, SAMPLES)))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "choices.yaml").write_text(CHOICES.format(file=file))
    (folder / "perplexity.yaml").write_text(PERPLEXITY.format(file=file))
    return folder


def run(folder: Path, **options: Any) -> HarnessScore:
    return run_task(model(), tokenizer(), "local_choices", include_path=folder, **options)


def test_the_harness_agrees_with_our_own_scores(tasks: Path) -> None:
    data = open_data(SAMPLES, tokenizer())
    likelihoods = []
    for batch in data:
        with torch.no_grad():
            logits = model()(**batch.inputs()).logits[:, :-1].double().log_softmax(-1)
        likelihoods += (logits.gather(2, batch.input_ids[:, 1:, None])[..., 0] * batch.predicted).sum(1).tolist()
    score = run(tasks)
    assert (score.task, score.metric) == ("local_choices", "acc,none")
    assert score.correct.tolist() == data.task.correct(likelihoods, normalised=False).tolist()
    assert score.reported == pytest.approx(score.accuracy)
    assert score.chance == pytest.approx(data.chance)
    normalised = run(tasks, metric="acc_norm")
    assert normalised.correct.tolist() == data.task.correct(likelihoods).tolist()
    assert normalised.metric == "acc_norm,none"


def test_noise_acts_inside_it_and_nothing_stays_behind(tasks: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clean = run(tasks)
    with inject(model(), RelativeGaussian(2.0), seed=1) as injected:
        noisy = run(tasks)
    assert injected.stats.rows
    assert noisy.correct.tolist() != clean.correct.tolist()
    assert run(tasks).correct.tolist() == clean.correct.tolist()
    assert capfd.readouterr() == ("", "")


def test_model_tokenizer_and_generators_are_left_as_they_were(tasks: Path) -> None:
    other, words = copy.deepcopy(model()), copy.deepcopy(tokenizer())
    other.model.layers[2].train()
    words.padding_side, words.pad_token = "right", None
    state = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    run_task(other, words, "local_choices", include_path=tasks, limit=2)
    assert [name for name, module in other.named_modules() if module.training and name.count(".") == 2] == [
        "model.layers.2"
    ]
    assert (words.padding_side, words.pad_token) == ("right", None)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), repr(np.random.get_state())) == state[1:]


def test_a_limit_takes_the_first_documents(tasks: Path) -> None:
    assert run(tasks, limit=3).correct.tolist() == run(tasks).correct[:3].tolist()


def test_examples_before_the_question_and_chat_are_passed_on(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def evaluate(**options: Any) -> dict[str, Any]:
        seen.update(options)
        sample = {"metrics": ["acc"], "acc": 1, "filter": "none", "doc_id": 0, "resps": [[0]]}
        return {"samples": {"local_choices": [sample]}, "results": {"local_choices": {"acc,none": 1.0}}}

    monkeypatch.setattr("lm_eval.simple_evaluate", evaluate)
    assert run(tasks, num_fewshot=2, chat_template=True, limit=4).chance == 0.0
    assert (seen["num_fewshot"], seen["apply_chat_template"], seen["limit"]) == (2, True, 4)
    assert seen["model"].model is model()


def test_what_cannot_be_run_is_one_line(tasks: Path) -> None:
    for options, complaint in (
        ({"task": "local_choises"}, 'unknown task "local_choises", did you mean "local_choices"?'),
        ({"task": "local_perplexity"}, 'task "local_perplexity": no metric that is 0 or 1 for each sample (has: '),
        ({"task": "local_choices", "metric": "f1"}, 'task "local_choices": no metric "f1" (has: acc,none, acc_norm'),
        ({"task": "local_choices", "limit": 1}, "limit: got 1, but intervals need at least two samples"),
    ):
        with pytest.raises(InputError) as caught:
            run_task(model(), tokenizer(), include_path=tasks, **options)
        assert str(caught.value).startswith(complaint)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"include_path .*: no such directory"):
        run(tasks / "missing")


def test_a_task_whose_data_is_missing_is_one_line(tasks: Path) -> None:
    (tasks.parent / "samples.jsonl").unlink()
    with pytest.raises(InputError, match=r'^task "local_choices": .*') as caught:
        run(tasks)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingExtra, match=r"needs lm-eval: pip install lm-eval$") as caught:
        run_task(model(), tokenizer(), "arc_easy")
    assert caught.value.exit_code == 6
