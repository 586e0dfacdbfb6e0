import numpy as np
import pytest

from noisescope.errors import InputError
from noisescope.measure.tasks import ExactMatch, MultipleChoice, Task

TASK = MultipleChoice(gold=(0, 2, 1), characters=((2, 4), (10, 1, 5), (3, 3)))
LIKELIHOODS = [-3.0, -4.0, -9.0, -3.0, -5.0, -2.0, -2.0]  # per character [-1.5, -1] [-.9, -3, -1] [-.67, -.67]


def test_the_likeliest_choice_counts_and_of_equals_the_first() -> None:
    assert TASK.correct(LIKELIHOODS, normalised=False).tolist() == [1, 0, 0]


def test_normalised_by_the_characters_of_the_choice() -> None:
    assert TASK.correct(LIKELIHOODS).tolist() == [0, 0, 0]
    assert MultipleChoice((1,), ((2, 4),)).correct([-3.0, -4.0]).tolist() == [1]


def test_what_is_not_finite_is_never_right() -> None:
    task = MultipleChoice((0, 0, 1), ((1, 1), (1, 1), (1, 1)))
    nan, inf = np.nan, np.inf
    assert task.correct([nan, -1.0, -inf, -inf, nan, -1.0]).tolist() == [0, 0, 1]


def test_a_wrong_number_of_rows_is_named() -> None:
    with pytest.raises(InputError, match=r"^log_likelihood: got shape \(3,\), expected one value for each of 7 rows$"):
        TASK.correct([1.0, 2.0, 3.0])


def test_chance_is_the_mean_of_one_over_the_choices() -> None:
    assert TASK.chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    assert TASK.samples == 3


def test_tasks_keep_the_protocol() -> None:
    exact = ExactMatch(answers=(), prompts=())
    for task in (TASK, exact):
        assert isinstance(task, Task)
    assert (TASK.generates, exact.generates, exact.chance) == (False, True, 0.0)
    assert {TASK.name, exact.name} == {"multiple choice", "numeric exact match"}


def test_the_repr_tells_labels_apart() -> None:
    assert repr(TASK) != repr(MultipleChoice((1, 2, 1), TASK.characters))
