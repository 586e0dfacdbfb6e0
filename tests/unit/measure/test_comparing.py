"""Clean against noisy, by hand on small arrays: sums by sample, paired intervals, and when accuracy says nothing."""

from dataclasses import replace
from math import exp, inf, isnan, sqrt

import numpy as np
import pytest
import torch
from scipy import stats

from noisescope.measure.batches import Batch, EvaluationSet
from noisescope.measure.comparing import Comparison, Outcome
from noisescope.measure.scoring import RowScores


def outcome(
    correct: list[float], asked: list[float] | None = None, chance: float = 0.1, **other: list[float]
) -> Outcome:
    asked = asked or [10.0] * len(correct)
    sums = {name: np.array(other.get(name, [0.0] * len(correct))) for name in ("kl_nats", "flips", "nll_nats")}
    return Outcome(np.array(asked), **sums, correct=np.array(correct), asked=np.array(asked), chance=chance)


CLEAN = outcome([5.0, 7.0, 6.0, 8.0])


def test_kl_and_flips_are_per_predicted_token() -> None:
    noisy = outcome([5.0, 7.0], [10.0, 30.0], kl_nats=[1.0, 2.0], flips=[4.0, 6.0])
    found = Comparison(outcome([5.0, 7.0], [10.0, 30.0]), noisy)
    assert found.kl.value == pytest.approx(3 / 40)
    assert found.flip_rate.value == pytest.approx(10 / 40)
    assert found.kl.low > 0, "a KL is positive, and so is its interval"
    assert found.kl.n == 2


def test_degradation_is_the_share_of_right_answers_lost() -> None:
    found = Comparison(CLEAN, outcome([4.0, 6.0, 5.0, 7.0])).degradation
    assert found.value == pytest.approx(4 / 26)


def test_degradation_is_paired() -> None:
    """The same loss in every sample is known exactly, however the samples differ."""
    clean, noisy = outcome([2.0, 9.0, 4.0, 6.0]), outcome([1.0, 4.5, 2.0, 3.0])
    found = Comparison(clean, noisy).degradation
    assert (found.value, found.stderr) == pytest.approx((0.5, 0.0))
    unpaired = Comparison(clean, outcome([4.5, 1.0, 3.0, 2.0])).degradation
    assert unpaired.value == pytest.approx(0.5)
    assert unpaired.stderr > 0.2


def test_the_interval_of_a_degradation_by_hand() -> None:
    lost = np.array([1.0, 0.0, 2.0, 1.0])
    clean = np.array([5.0, 7.0, 6.0, 8.0])
    value = lost.sum() / clean.sum()
    residual = lost - value * clean
    stderr = sqrt(4 / 3 * (residual**2).sum()) / clean.sum()
    found = Comparison(CLEAN, outcome(list(clean - lost))).degradation
    assert found.stderr == pytest.approx(stderr)
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, 3) * stderr)


def test_noise_that_helped_is_shown_as_it_was() -> None:
    found = Comparison(CLEAN, outcome([6.0, 8.0, 7.0, 8.0])).degradation
    assert found.value == pytest.approx(-3 / 26)
    assert found.low < found.value < found.high
    assert Comparison(CLEAN, CLEAN).degradation.value == 0.0


def test_without_a_right_answer_there_is_nothing_to_lose() -> None:
    found = Comparison(outcome([0.0, 0.0]), outcome([1.0, 0.0]))
    assert isnan(found.degradation.value)
    assert found.degradation.n == 2
    assert not found.conclusive


def test_chance_is_beaten_by_two_standard_errors() -> None:
    """Accuracies .5 .7 .6 .8: mean .65, standard error .0645."""
    accuracy = CLEAN.accuracy
    assert (accuracy.value, accuracy.stderr) == pytest.approx((0.65, np.std([0.5, 0.7, 0.6, 0.8], ddof=1) / 2))
    edge = accuracy.value - 2 * accuracy.stderr
    assert replace(CLEAN, chance=edge - 1e-9).conclusive
    assert not replace(CLEAN, chance=edge + 1e-9).conclusive
    noisy = outcome([0.0, 0.0, 0.0, 0.0])
    assert Comparison(CLEAN, noisy).conclusive, "it is the clean model that must be better than chance"
    assert not Comparison(noisy, CLEAN).conclusive


def test_one_sample_concludes_nothing() -> None:
    assert not outcome([10.0]).conclusive
    assert outcome([10.0]).accuracy.high == inf


def test_perplexity() -> None:
    found = outcome([1.0, 1.0], [4.0, 6.0], nll_nats=[8.0, 12.0]).perplexity
    assert (found.value, found.low, found.high) == pytest.approx((exp(2), exp(2), exp(2)))
    varied = outcome([1.0, 1.0, 1.0], [5.0, 5.0, 5.0], nll_nats=[8.0, 12.0, 10.0]).perplexity
    assert varied.low < exp(2) < varied.high
    assert varied.value / varied.low == pytest.approx(varied.high / varied.value)
    assert outcome([1.0, 1.0], [1.0, 1.0], nll_nats=[1e6, inf]).perplexity.value == inf, "beyond what a float holds"


# --- trials -----------------------------------------------------------------------------------------------------


def test_trials_add_up_and_the_clean_run_is_repeated() -> None:
    """The mean of three draws, against the clean run: samples stay the clusters."""
    draws = [outcome([4.0, 6.0], kl_nats=[1.0, 3.0]), outcome([5.0, 4.0], kl_nats=[2.0, 5.0]), outcome([3.0, 6.0])]
    clean = outcome([5.0, 7.0])
    found = Comparison(clean.repeated(3), draws[0] + draws[1] + draws[2])
    assert found.kl.value == pytest.approx(11 / 60)
    assert found.degradation.value == pytest.approx((36 - 28) / 36)
    assert found.clean.accuracy.value == pytest.approx(clean.accuracy.value)
    assert found.clean.accuracy.stderr == pytest.approx(clean.accuracy.stderr), "repeating tells nothing new"
    assert found.kl.n == 2


# --- from rows to samples ---------------------------------------------------------------------------------------


def evaluation(samples: list[tuple[int, ...]], task: object = None) -> EvaluationSet:
    def batch(owners: tuple[int, ...]) -> Batch:
        ids = torch.ones(len(owners), 3, dtype=torch.int64)
        return Batch(ids, ids, torch.ones(len(owners), 2, dtype=torch.bool), owners)

    return EvaluationSet("by hand", tuple(batch(owners) for owners in samples), task)


ROWS = RowScores(
    tokens=np.array([2, 2, 2, 2]),
    kl_nats=np.array([0.1, 0.2, 0.3, 0.4]),
    flips=np.array([0.0, 1.0, 0.0, 2.0]),
    correct=np.array([2.0, 1.0, 0.0, 1.0]),
    nll_nats=np.array([1.0, 2.0, 3.0, 0.5]),
)


def test_rows_are_summed_by_sample() -> None:
    found = Outcome.of(ROWS, evaluation([(0, 0, 1), (2,)]))
    assert found.tokens.tolist() == [4, 2, 2]
    assert found.kl_nats == pytest.approx([0.3, 0.3, 0.4])
    assert found.flips.tolist() == [1, 0, 2]
    assert found.correct.tolist() == [3, 0, 1]
    assert found.asked.tolist() == [4, 2, 2], "without labels every token is a question"
    assert found.chance == 1.0, "all targets are the same token"


class Choices:
    """A task whose samples have two rows, of which the likelier is the answer; the first is right."""

    chance = 0.5
    name = "choices"

    def correct(self, log_likelihood: np.ndarray) -> np.ndarray:
        return (log_likelihood[::2] > log_likelihood[1::2]).astype(float)


def test_a_labelled_sample_is_one_question() -> None:
    found = Outcome.of(ROWS, evaluation([(0, 0), (1, 1)], Choices()))
    assert found.correct.tolist() == [1.0, 0.0]
    assert found.asked.tolist() == [1.0, 1.0]
    assert found.tokens.tolist() == [4, 4], "KL is still per token"
    assert found.chance == 0.5
    assert found.accuracy.value == 0.5


def test_answers_that_were_written_count_as_they_are() -> None:
    found = Outcome.of(ROWS, evaluation([(0, 0), (1, 1)], Choices()), np.array([0.0, 1.0]))
    assert found.correct.tolist() == [0.0, 1.0]
