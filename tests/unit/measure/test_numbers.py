"""Answers scored by hand."""

from decimal import Decimal

import pytest

from noisescope.measure.numbers import last_number, reference_number, same_number

SCORED_BY_HAND = [
    # what the model wrote, the reference, right?
    ("She makes 9 * 2 = $18 every day.", "Janet sells 9.\n#### 18", True),
    ("#### 18", "18", True),
    ("The answer is 18.", "18", True),
    ("The answer is 18.00.", "18", True),
    ("The profit is $70,000", "#### 70000", True),
    ("The profit is $70,000", "70,000", True),
    ("It is 1,234,567.5 exactly.", "1234567.5", True),
    ("18 eggs, no, 17 eggs", "18", False),
    ("There are 18 eggs in 3 boxes", "18", False),
    ("I do not know.", "18", False),
    ("", "0", False),
    ("It fell to -5 degrees", "-5", True),
    ("It fell to \N{MINUS SIGN}5 degrees", "-5", True),
    ("He owes -$5", "-5", True),
    ("He owes $-5", "-5", True),
    ("20-5", "5", True),  # a subtraction, not a negative number
    ("20-5", "-5", False),
    ("about 33.33", "33.34", True),
    ("about 33.32", "33.34", False),
    ("exactly 18.01", "18", True),  # 0.01 off, on the edge, which binary floats would miss
    ("exactly 18.02", "18", False),
    ("that is 75%.", "75%", True),
    ("\\boxed{72}", "72", True),
    ("**540** meters", "540", True),
    ("the total is 1.5e3", "1500", True),
    ("the 2nd of 3, 4", "4", True),
    ("half is .5", "0.5", True),
    ("100000000000000000000000001", "100000000000000000000000000", False),
]


@pytest.mark.parametrize(("text", "reference", "right"), SCORED_BY_HAND)
def test_an_answer_is_scored_as_by_hand(text: str, reference: str, right: bool) -> None:
    number = reference_number(reference)
    assert number is not None
    assert same_number(last_number(text), number) is right


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("a line\n#### 1,200", "1200"),
        ("#### 3 then #### 4", "4"),
        ("  $12.50 ", "12.50"),
        ("12.", "12"),
        (7, "7"),
        (2.5, "2.5"),
        ("-3", "-3"),
    ],
)
def test_a_reference_gives_its_number(answer: object, number: str) -> None:
    assert reference_number(answer) == Decimal(number)


@pytest.mark.parametrize(
    "answer",
    [
        "9" * 400,
        10**400,
        "#### 1" + "0" * 400,
        "12 eggs",
        "\\frac{3}{4}",
        "#### none",
        "",
        "A",
        None,
        True,
        [3],
        float("nan"),
        float("inf"),
    ],
)
def test_what_is_no_number_gives_none(answer: object) -> None:
    assert reference_number(answer) is None
