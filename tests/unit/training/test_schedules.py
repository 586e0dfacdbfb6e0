"""Schedules: what they give at every step, for any number of stages and steps."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import noisescope as ns
from noisescope.errors import InputError
from noisescope.training.schedules import as_schedule


def stages(count: int, start: float, end: float) -> list[float]:
    """The documented table: the first has none, the others go from start to end by a constant factor."""
    if count == 1:
        return [start]
    if count == 2:
        return [0.0, start]
    return [0.0, *(start * (end / start) ** (i / (count - 2)) for i in range(count - 1))]


@pytest.mark.parametrize("count", range(1, 13))
def test_every_number_of_stages_does_what_its_name_says(count):
    schedule = ns.ExponentialStages(1e-2, 1e-4, stages=count)
    total = 7 * count
    found = [schedule.at(step, total) for step in range(total)]
    assert found == pytest.approx([scale for scale in stages(count, 1e-2, 1e-4) for _ in range(7)])
    assert found[-1] == pytest.approx(1e-4 if count > 2 else 1e-2)


def test_the_documented_default():
    schedule = ns.ExponentialStages()
    found = [schedule.at(step, 10) for step in range(10)]
    assert found[0] == 0
    assert found[1] == 1e-2
    assert found[9] == pytest.approx(1e-4)
    ratios = [b / a for a, b in pairwise(found[1:])]
    assert ratios == pytest.approx([10 ** (-2 / 8)] * 8)


@given(st.integers(1, 40), st.integers(1, 500))
def test_stages_are_equal_parts_whatever_the_number_of_steps(count, total):
    schedule = ns.ExponentialStages(1e-1, 1e-3, stages=count)
    levels = stages(count, 1e-1, 1e-3)
    for step in range(total):
        stage = math.floor(Fraction(step, total) * count)
        assert schedule.at(step, total) == pytest.approx(levels[stage])


@given(st.integers(2, 300), st.floats(0, 1), st.floats(0, 1))
def test_lines_and_curves_go_from_the_first_step_to_the_last(total, start, end):
    for schedule in (ns.LinearSchedule(start, end), ns.CosineSchedule(start, end)):
        found = [schedule.at(step, total) for step in range(total)]
        assert found[0] == start
        assert found[-1] == pytest.approx(end)
        assert all(min(start, end) - 1e-12 <= scale <= max(start, end) + 1e-12 for scale in found)
        steps = [b - a for a, b in pairwise(found)]
        assert all(step * (end - start) >= -1e-12 for step in steps), "never back"


def test_the_middle_of_a_line_and_of_a_curve():
    assert ns.LinearSchedule(0.4, 0.2).at(2, 9) == pytest.approx(0.35)
    assert ns.CosineSchedule(0.4, 0.2).at(2, 9) == pytest.approx(0.2 + 0.2 * (1 + math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize(
    "schedule",
    [ns.ConstantSchedule(0.1), ns.LinearSchedule(0.1), ns.CosineSchedule(0.1), ns.ExponentialStages(0.1, 0.01)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_after_the_end_it_stays_and_one_step_is_enough(schedule):
    assert schedule.at(70, 50) == schedule.at(49, 50)
    assert schedule.at(0, 1) in (0.1, 0.0)


def test_a_number_is_a_constant_schedule():
    assert as_schedule(0.05) == ns.ConstantSchedule(0.05)
    assert as_schedule(ns.LinearSchedule(0.1)) == ns.LinearSchedule(0.1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ns.ExponentialStages(stages=0), "stages: got 0, expected a whole number of at least 1"),
        (lambda: ns.ExponentialStages(stages=2.5), "stages: got 2.5"),
        (lambda: ns.ExponentialStages(-1e-2, 1e-4), "start: got -0.01, expected a finite number >= 0"),
        (lambda: ns.ExponentialStages(1e-2, 0), "end: got 0, expected a number > 0"),
        (lambda: ns.LinearSchedule(float("nan")), "start: got nan"),
        (lambda: ns.CosineSchedule(0.1, -1), "end: got -1.0"),
        (lambda: ns.ConstantSchedule(-0.1), "scale: got -0.1"),
        (lambda: as_schedule("much"), "schedule: got 'much', expected a number >= 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(make, says):
    with pytest.raises(InputError, match=says.replace("(", r"\(")) as refused:
        make()
    assert "\n" not in str(refused.value)
