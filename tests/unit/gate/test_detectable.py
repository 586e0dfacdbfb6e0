"""The statistics of the gate, against the slow obvious way: leaving one out, and drawing many times."""

from math import inf, sqrt

import numpy as np
import pytest
from counted import drawn

from noisescope.gate.evaluating import Evaluation
from noisescope.gate.significance import LEVEL, Critical, Difference, Loss, detectable, samples_needed
from noisescope.measure.intervals import ratio


def losses(before: Evaluation, after: Evaluation, name: str = "linear") -> tuple[Loss, Loss]:
    return Loss.of(before.clean, before.noisy[name]), Loss.of(after.clean, after.noisy[name])


def degradation(found: Evaluation, keep: np.ndarray) -> float:
    clean, noisy = found.clean[keep].sum(), found.noisy["linear"][keep].sum()
    return float((clean - noisy) / clean)


def test_a_loss_is_the_degradation_of_a_comparison() -> None:
    before, _ = drawn(np.random.default_rng(0), 60, {"linear": (0.1, 0.1)})
    known = ratio(before.clean - before.noisy["linear"], before.clean)
    found = Difference.between(Loss.of(before.clean, before.noisy["linear"]))
    assert found.value == pytest.approx(known.value)
    assert found.stderr == pytest.approx(known.stderr)
    assert found.interval() == pytest.approx((known.low, known.high))


@pytest.mark.parametrize("weight", [1.0, 1.2])
def test_the_error_of_a_paired_difference_is_that_of_leaving_one_out(weight: float) -> None:
    before, after = drawn(np.random.default_rng(1), 80, {"linear": (0.1, 0.14)})
    one, other = losses(before, after)
    found = Difference.between(other, one, weight)
    n = len(before.asked)
    without = [np.arange(n) != at for at in range(n)]
    values = [degradation(after, keep) - weight * degradation(before, keep) for keep in without]
    jackknife = sqrt((n - 1) / n * np.square(values - np.mean(values)).sum())
    assert found.value == pytest.approx(degradation(after, np.arange(n)) - weight * degradation(before, np.arange(n)))
    assert found.stderr == pytest.approx(jackknife, rel=0.03)


def test_pairing_takes_out_what_both_find_hard() -> None:
    """The same noise on the same tokens: the difference of a model to itself has no error but the smallest."""
    before, _ = drawn(np.random.default_rng(2), 50, {"linear": (0.1, 0.1)})
    one, _ = losses(before, before)
    found = Difference.between(one, one)
    assert found.value == 0
    assert found.stderr == pytest.approx(sqrt(2) / before.clean.sum())  # one prediction in each


def test_one_point_worse_is_failed_as_rarely_as_it_says() -> None:
    """At the edge of what is allowed, where false alarms are most frequent."""
    rng = np.random.default_rng(3)
    ps = []
    for _ in range(600):
        one, other = losses(*drawn(rng, 100, {"linear": (0.10, 0.11)}))
        ps.append(Difference.between(other, one).p_above(0.01))
    for level in (0.05, 0.2):
        rate = np.mean(np.array(ps) < level)
        assert rate == pytest.approx(level, abs=3.5 * sqrt(level * (1 - level) / 600))


@pytest.mark.parametrize("base", [0.02, 0.15])
def test_the_smallest_detectable_change_is_detected_in_four_of_five_cases(base: float) -> None:
    """The size is foretold from pairs that do not differ, as a check that passes does, and then planted."""
    rng = np.random.default_rng(4)
    n, critical = 200, Critical.of(10, 200)
    told = []
    for _ in range(40):
        one, other = losses(*drawn(rng, n, {"linear": (base, base)}))
        told.append(detectable(Difference.between(other, one), 0.01, critical.both, other.right))
    size, seen = float(np.mean(told)), 0
    for _ in range(400):
        one, other = losses(*drawn(rng, n, {"linear": (base, base + size)}))
        seen += Difference.between(other, one).p_above(0.01) < LEVEL / 10
    assert seen / 400 == pytest.approx(0.8, abs=0.08)


def test_as_many_samples_as_it_says_are_enough() -> None:
    rng = np.random.default_rng(5)
    wanted, few = 0.05, Critical.of(10, 100)
    one, other = losses(*drawn(rng, 100, {"linear": (0.1, 0.1)}))
    enough = samples_needed(Difference.between(other, one), 0.01, few.both, other.right, wanted)
    assert 100 < enough < 2000
    one, other = losses(*drawn(rng, enough, {"linear": (0.1, 0.1)}))
    found = detectable(Difference.between(other, one), 0.01, Critical.of(10, enough).both, other.right)
    assert found == pytest.approx(wanted, rel=0.1)


def test_more_tests_ask_for_more() -> None:
    assert Critical.of(20, 400).significant > Critical.of(10, 400).significant > Critical.of(1, 400).significant
    assert Critical.of(1, 400).significant == pytest.approx(1.649, abs=0.001)  # Student's t of 399 degrees of freedom


def test_one_sequence_says_nothing() -> None:
    lone = Loss.of(np.array([10]), np.array([5]))
    assert Difference.between(lone).p_above(0.0) == 1
    assert Difference.between(lone).interval() == (-inf, inf)
    assert detectable(Difference.between(lone), 0.01, Critical.of(1, 1).both, 10) == inf
