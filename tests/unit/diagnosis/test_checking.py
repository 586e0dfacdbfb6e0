"""Checks of the map: which cells, what stands afterwards, when a correction is carried on."""

import math
from dataclasses import dataclass, field

import pytest

from noisescope.diagnosis.checking import carrying_helps, choose_checks, correct
from noisescope.measure.intervals import Estimate


def figure(value: float, share: float = 0.05) -> Estimate:
    return Estimate(value, value * 0.9, value * 1.1, value * share, 50)


@dataclass
class Compared:
    kl: Estimate


@dataclass
class Found:
    final: bool = True


@dataclass
class Measured:
    comparison: Compared | None
    finding: Found = field(default_factory=Found)


def result(kl: Estimate | None, *, final: bool = True) -> Measured:
    return Measured(Compared(kl) if kl else None, Found(final))


CELLS = {(layer, operator): figure(1 + layer) for operator in ("linear", "softmax", "silu") for layer in range(10)}
CELLS["head", "linear"] = figure(100)


def test_the_worst_and_some_of_every_operator() -> None:
    chosen = choose_checks(CELLS, 12, seed=0)
    assert len(chosen) == len(set(chosen)) == 12
    assert chosen[0] == ("head", "linear")
    assert set(chosen[1:4]) == {(9, "linear"), (9, "softmax"), (9, "silu")}
    assert all(sum(op == operator for _, op in chosen[4:]) >= 2 for operator in ("linear", "softmax", "silu"))
    assert choose_checks(CELLS, 12, seed=0) == chosen
    assert choose_checks(CELLS, 12, seed=1) != chosen
    assert len(choose_checks(CELLS, 1000, seed=0)) == 31


def test_where_they_agree_the_prediction_stands() -> None:
    found = correct(CELLS, {(3, "linear"): result(figure(4.1))})
    assert found.cells[3, "linear"].how == "predicted"
    assert found.cells[3, "linear"].measured.value == 4.1
    assert not found.cells[3, "linear"].disagrees


def test_where_they_disagree_the_measurement_stands_and_is_marked() -> None:
    found = correct(CELLS, {(3, "linear"): result(figure(8.0))})
    cell = found.cells[3, "linear"]
    assert (cell.how, cell.value.value, cell.disagrees) == ("measured", 8.0, True)
    assert found.cells[4, "linear"].how == "predicted"
    assert not found.corrections


def test_wide_intervals_disagree_less() -> None:
    cells = {(0, "linear"): figure(1.0, share=0.5)}
    assert not correct(cells, {(0, "linear"): result(figure(1.6))}).cells[0, "linear"].disagrees


def test_a_prediction_without_an_interval_gives_way_to_a_measurement() -> None:
    """As of experts' cells in a single batch, where sequences cannot be told apart."""
    alone = {(0, "linear"): Estimate(1.0, 0.0, math.inf, math.inf, 1)}
    found = correct(alone, {(0, "linear"): result(figure(6.0))}).cells[0, "linear"]
    assert (found.how, found.value.value, found.disagrees) == ("measured", 6.0, False)


def test_a_common_gap_is_carried_to_the_operators_other_cells() -> None:
    checked = {(layer, "softmax"): result(figure(2.4 * (1 + layer))) for layer in (1, 4, 7)}
    found = correct(CELLS, checked)
    assert found.corrections == {"softmax": pytest.approx(2.4)}
    assert found.cells[5, "softmax"].how == "carried"
    assert found.cells[5, "softmax"].value.value == pytest.approx(2.4 * 6)
    assert found.cells[5, "softmax"].predicted.value == 6
    assert found.cells[5, "linear"].how == "predicted"


def test_gaps_that_foretell_nothing_are_not_carried() -> None:
    assert carrying_helps([0.9, 0.8, 1.0])
    assert not carrying_helps([0.9, -0.8, 0.1]), "either way"
    assert not carrying_helps([0.02, -0.01, 0.01]), "nothing to correct"
    assert not carrying_helps([0.9, 0.9]), "too few"


def test_a_layer_is_the_sum_of_its_cells() -> None:
    found = correct(CELLS, {})
    total = found.layer(4)
    assert total.value == pytest.approx(15.0)
    assert total.stderr == pytest.approx(0.05 * 5 * 3**0.5)
    assert found.layer("embed") is None


def test_attentions_value_counts_once() -> None:
    """It is the second of the two products, which the products' cell has too."""
    cells = {(0, "matmul"): figure(3.0), (0, "attention"): figure(2.0), (0, "linear"): figure(1.0)}
    assert correct(cells, {}).layer(0).value == pytest.approx(4.0)
    assert correct({(0, "attention"): figure(2.0)}, {}).layer(0).value == pytest.approx(2.0)


def test_a_failed_check_is_left_out() -> None:
    found = correct(CELLS, {(3, "linear"): result(None, final=False)})
    assert found.agreement["checked"] == 0
    assert found.cells[3, "linear"].measured is None


def test_a_check_that_breaks_the_model_stands() -> None:
    """Whatever was predicted: the output was not finite."""
    found = correct(CELLS, {(3, "linear"): result(None)})
    cell = found.cells[3, "linear"]
    assert (cell.how, cell.value.value, cell.disagrees) == ("measured", math.inf, True)
    assert cell.predicted.value == 4
    assert found.layer(3).value == math.inf
    assert math.isfinite(found.layer(4).value)


def test_how_well_the_map_did() -> None:
    checked = {(layer, "linear"): result(figure(1.1 * (1 + layer))) for layer in range(6)}
    found = correct(CELLS, checked).agreement
    assert found["checked"] == 6
    assert found["spearman"]["value"] == pytest.approx(1.0)
    assert found["ratio_median"] == pytest.approx(1 / 1.1)
