"""Checkpoints that are as good pass, and those that are not fail: 42 pairs here, 200 in benchmarks/check.

Two short trainings of the fixture with another order of the data, and the fixture itself. What noise costs them is
measured once on many windows; a check is made of some of these, with the noise that they had.
"""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

import noisescope as ns
from noisescope.diagnosis import Diagnosis
from noisescope.diagnosis.progress import silent
from noisescope.gate.evaluating import Evaluation, evaluate
from noisescope.gate.judging import Allowed, OperatorRow, judge
from noisescope.gate.significance import Loss
from noisescope.specs import DiagnosisSpec
from trained import fixture

WINDOWS, TEXTS, SCALE = 560, 7, 0.1


def trained_on(order: int) -> torch.nn.Module:
    """The fixture after a few more steps, on windows of the text in that order."""
    model, tokenizer = fixture("llama")
    ids = torch.cat([batch.input_ids for batch in ns.open_data(None, tokenizer, n_samples=400, max_length=64)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    model.train()
    for rows in torch.randperm(len(ids), generator=torch.Generator().manual_seed(order))[:64].split(8):
        loss = model(input_ids=ids[rows], labels=ids[rows], use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def evaluated(model: torch.nn.Module, scale: float) -> Evaluation:
    data = ns.open_data(None, fixture("llama")[1], n_samples=WINDOWS, max_length=16, batch_size=80)
    return evaluate(
        Diagnosis(model, data, DiagnosisSpec("operator", scale, operators=("linear", "residual"))), progress=silent
    )


@pytest.fixture(scope="module")
def models() -> list[torch.nn.Module]:
    return [fixture("llama")[0], trained_on(1), trained_on(2)]


@pytest.fixture(scope="module")
def evaluations(models: list[torch.nn.Module]) -> list[Evaluation]:
    return [evaluated(model, SCALE) for model in models]


def texts() -> list[np.ndarray]:
    """Samples of windows that share none."""
    return np.array_split(np.random.default_rng(0).permutation(WINDOWS), TEXTS)


def part(found: Evaluation, chosen: np.ndarray) -> Evaluation:
    noisy = {name: counts[chosen] for name, counts in found.noisy.items()}
    return replace(found, asked=found.asked[chosen], clean=found.clean[chosen], noisy=noisy)


def checked(before: Evaluation, after: Evaluation, chosen: np.ndarray) -> list[OperatorRow]:
    return judge(part(before, chosen), part(after, chosen), Allowed(resolution=0.3))


def loss(found: Evaluation, name: str) -> float:
    return Loss.of(found.clean, found.noisy[name]).value


def test_they_are_other_models_and_as_good(models: list[torch.nn.Module], evaluations: list[Evaluation]) -> None:
    weights = [model.lm_head.weight for model in models]
    assert not torch.equal(weights[1], weights[2])
    for name in evaluations[0].noisy:
        lost = [loss(found, name) for found in evaluations]
        assert max(lost) - min(lost) < 0.01, name


def test_forty_pairs_of_equivalent_checkpoints(evaluations: list[Evaluation]) -> None:
    pairs = [(before, after, chosen) for before, after in permutations(evaluations, 2) for chosen in texts()]
    assert len(pairs) >= 40
    failed = [any(row.outcome == "failed" for row in checked(*pair)) for pair in pairs]
    assert sum(failed) / len(pairs) <= 0.05


def test_a_planted_regression_is_seen(models: list[torch.nn.Module], evaluations: list[Evaluation]) -> None:
    """More noise on one of the models: an operator that truly costs more than what the checks say they see."""
    worse = evaluated(models[2], 2.5 * SCALE)
    planted = replace(evaluations[2], noisy={**evaluations[2].noisy, "residual": worse.noisy["residual"]})
    change = loss(planted, "residual") - loss(evaluations[0], "residual")
    rows = [
        next(row for row in checked(before, planted, chosen) if row.operator == "residual")
        for before in evaluations[:2]
        for chosen in texts()
    ]
    assert change > float(np.mean([row.detectable for row in rows]))
    assert sum(row.outcome == "failed" for row in rows) >= 0.8 * len(rows)
    others = [
        row for chosen in texts() for row in checked(evaluations[0], planted, chosen) if row.operator != "residual"
    ]
    assert not [row for row in others if row.outcome == "failed"]
