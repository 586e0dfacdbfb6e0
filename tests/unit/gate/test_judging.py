"""The rules: what fails, what passes, and what is not known."""

from dataclasses import replace

import numpy as np
import pytest
from counted import drawn

from noisescope.gate.evaluating import Evaluation
from noisescope.gate.judging import POINT, Allowed, OperatorRow, judge
from noisescope.gate.significance import LEVEL, Difference, Loss


def judged(
    losses: dict[str, tuple[float, float]], *, n: int = 2000, allowed: Allowed | None = None
) -> dict[str, OperatorRow]:
    before, after = drawn(np.random.default_rng(0), n, losses)
    return {row.operator: row for row in judge(before, after, allowed or Allowed())}


def test_an_operator_that_got_worse_fails_and_the_others_pass() -> None:
    rows = judged({"linear": (0.05, 0.05), "softmax": (0.05, 0.12)})
    assert rows["linear"].outcome == "passed"
    assert rows["softmax"].outcome == "failed"
    assert rows["softmax"].why.startswith("noise on it costs 1")
    assert rows["softmax"].change == pytest.approx(0.07, abs=0.01)


def test_a_point_is_not_enough_where_noise_costs_much() -> None:
    """3 points more than 30% are a tenth: beyond a point for sure, but not a fifth."""
    row = judged({"linear": (0.30, 0.33)}, n=20_000)["linear"]
    assert row.p is not None
    assert row.p < 0.001
    assert row.outcome == "passed"


def test_twice_as_bad_is_not_enough_where_noise_costs_nothing() -> None:
    row = judged({"linear": (0.004, 0.008)}, n=20_000)["linear"]
    assert row.change is not None
    assert row.change > 0.2 * 0.004
    assert row.outcome == "passed"


def test_better_is_never_worse() -> None:
    assert judged({"linear": (0.2, 0.1)})["linear"].outcome == "passed"


def test_the_limit() -> None:
    rows = judged({"linear": (0.10, 0.10), "head": (0.30, 0.30)}, allowed=Allowed(0.15))
    assert rows["linear"].outcome == "passed"
    assert rows["head"].outcome == "failed"
    assert "at most 15.0% is allowed" in rows["head"].why


def test_a_little_above_the_limit_is_inconclusive() -> None:
    before, after = drawn(np.random.default_rng(0), 400, {"head": (0.15, 0.15)})
    loss = 1 - after.noisy["head"].sum() / after.clean.sum()
    (row,) = judge(before, after, Allowed(loss - 0.001))
    assert row.outcome == "inconclusive"
    assert "but not significantly" in row.why
    (row,) = judge(before, after, Allowed(loss + 0.001))
    assert row.outcome == "passed"


def test_too_few_samples_are_inconclusive_and_it_says_how_many_would_do() -> None:
    row = judged({"linear": (0.1, 0.1)}, n=20)["linear"]
    assert row.outcome == "inconclusive"
    assert row.detectable is not None
    assert row.detectable > 0.05
    assert row.samples > 20
    assert f"about {row.samples} samples would do" in row.why
    assert judged({"linear": (0.1, 0.1)}, n=row.samples * 2)["linear"].outcome == "passed"


def test_coarser_eyes_are_enough_if_you_say_so() -> None:
    assert judged({"linear": (0.1, 0.1)}, n=60)["linear"].outcome == "inconclusive"
    assert judged({"linear": (0.1, 0.1)}, n=60, allowed=Allowed(resolution=0.3))["linear"].outcome == "passed"


def test_what_could_not_be_measured_is_inconclusive() -> None:
    before, after = drawn(np.random.default_rng(0), 400, {"linear": (0.1, 0.1), "head": (0.1, 0.1)})
    lost = replace(after, noisy={"linear": after.noisy["linear"]}, failed={"head": "MemoryError: 3 GB"})
    rows = judge(before, lost, Allowed())
    assert [row.operator for row in rows] == ["linear", "head"]
    assert rows[1].outcome == "inconclusive"
    assert "MemoryError: 3 GB" in rows[1].why


def test_an_output_that_is_no_longer_finite_fails() -> None:
    before, after = drawn(np.random.default_rng(0), 100, {"linear": (0.1, 0.1)})
    (row,) = judge(before, replace(after, noisy={"linear": np.zeros(100, np.int64)}), Allowed())
    assert (row.outcome, row.current) == ("failed", 1.0)


def test_limits_alone() -> None:
    _, after = drawn(np.random.default_rng(0), 2000, {"linear": (0.1, 0.1), "head": (0.1, 0.4)})
    rows = judge(None, after, Allowed(0.2))
    assert [row.outcome for row in rows] == ["passed", "failed"]
    assert {(row.baseline, row.change, row.p, row.detectable) for row in rows} == {(None, None, None, None)}
    assert all(0 < row.detectable_excess < 0.05 for row in rows if row.detectable_excess is not None)


@pytest.mark.parametrize("samples", [100, 400])
def test_the_smallest_excess_over_a_limit_is_seen_in_four_of_five_cases(samples: int) -> None:
    rng, seen = np.random.default_rng(4), 0
    (told,) = (
        row.detectable_excess for row in judge(None, drawn(rng, samples, {"linear": (0.2, 0.2)})[1], Allowed(0.2))
    )
    for _ in range(300):
        _, after = drawn(rng, samples, {"linear": (0.2, 0.2 + told)})
        seen += judge(None, after, Allowed(0.2))[0].outcome == "failed"
    assert 0.7 < seen / 300 < 0.93


def test_the_whole_check_is_wrong_at_most_as_often_as_it_says() -> None:
    """Ten operators, all at the edge of what is allowed: a point worse. Without a correction a third would fail."""
    rng, failed, without = np.random.default_rng(6), 0, 0
    losses = {f"operator {at}": (0.04, 0.05) for at in range(10)}
    for _ in range(300):
        before, after = drawn(rng, 100, losses)
        failed += any(row.outcome == "failed" for row in judge(before, after, Allowed(resolution=1.0)))
        without += any(uncorrected(before, after, name) < LEVEL for name in losses)
    assert failed / 300 <= 0.05 + 0.035
    assert without / 300 > 0.25


def uncorrected(before: Evaluation, after: Evaluation, name: str) -> float:
    one, other = (Loss.of(found.clean, found.noisy[name]) for found in (before, after))
    return Difference.between(other, one).p_above(POINT)


def test_chance() -> None:
    before, _ = drawn(np.random.default_rng(0), 100, {"linear": (0.1, 0.1)})
    assert before.conclusive
    assert not Evaluation(before.asked, before.clean, before.noisy, 0.5, 9.0).conclusive
