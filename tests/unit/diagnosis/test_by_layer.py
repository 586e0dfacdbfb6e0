"""Windows, groups, avalanche points and amplification, by hand."""

import pytest

from noisescope.diagnosis.by_layer import (
    amplification,
    group_windows,
    identify_avalanche_points,
    layer_degradation,
    sliding_windows,
)
from noisescope.errors import InputError
from noisescope.measure.intervals import Estimate


def rows(losses: dict[str, float]) -> dict[str, dict[str, float]]:
    made = {}
    for name, loss in losses.items():
        first, _, last = name.removeprefix("L").partition("-")
        made[name] = {"start_layer": int(first), "end_layer": int(last or first), "degradation": loss}
    return made


def test_windows_slide_over_the_layers() -> None:
    assert [w.name for w in sliding_windows(range(6), 3, 1)] == ["L0-2", "L1-3", "L2-4", "L3-5"]
    assert [w.name for w in sliding_windows(range(7), 3, 3)] == ["L0-2", "L3-5", "L4-6"], "the end is always seen"
    assert [w.name for w in sliding_windows(range(3), 1, 1)] == ["L0", "L1", "L2"]
    assert [w.name for w in sliding_windows([2, 3, 4, 8, 9, 10], 3, 1)] == ["L2-4", "L8-10"], "none across a gap"
    assert [w.name for w in sliding_windows([0, 2, 3, 4, 6], 3, 2)] == ["L2-4"], "each run from its own beginning"
    with pytest.raises(InputError, match="window_size: got 4, the model has 3 layers"):
        sliding_windows(range(3), 4, 1)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(9, ["L0-2", "L3-5", "L6-8"]), (8, ["L0-2", "L3-5", "L6-7"]), (4, ["L0-1", "L2", "L3"]), (2, ["L0", "L1"])],
)
def test_thirds(layers: int, expected: list[str]) -> None:
    assert [w.name for w in group_windows(range(layers)).values()] == expected


def test_an_avalanche_point_stands_out_from_windows_that_share_no_layer() -> None:
    """L2-4 has overlapping neighbours that lose almost as much: they do not count."""
    losses = {"L0-2": 0.20, "L1-3": 0.24, "L2-4": 0.25, "L3-5": 0.24, "L4-6": 0.12, "L5-7": 0.10}
    found = identify_avalanche_points(rows(losses))
    assert [point["layer_range"] for point in found] == ["L2-4", "L1-3"]
    assert [point["severity"] for point in found] == ["CRITICAL", "CRITICAL"]


def test_the_edges_of_the_rule() -> None:
    assert identify_avalanche_points(rows({"L0": 0.15, "L1": 0.0})) == [], "more than the threshold"
    assert identify_avalanche_points(rows({"L0": 0.16, "L1": 0.11})) == [], "1.5 times the nearest"
    assert len(identify_avalanche_points(rows({"L0": 0.165, "L1": 0.11}))) == 1
    assert identify_avalanche_points(rows({"L0": 0.201, "L1": 0.0}))[0]["severity"] == "CRITICAL"
    assert identify_avalanche_points(rows({"L0": 0.200, "L1": 0.0}))[0]["severity"] == "HIGH"
    assert identify_avalanche_points(rows({"L0": 0.10, "L1": 0.0}), threshold=0.05)[0]["layer_range"] == "L0"
    assert len(identify_avalanche_points(rows({"L0-2": 0.5}))) == 1, "nothing to compare with"
    both = rows({"L0": 0.1, "L1": 0.3, "L2": 0.25})
    assert identify_avalanche_points(both) == [], "each nearest window, on both sides"


def test_a_window_without_a_figure_is_passed_over() -> None:
    made = rows({"L0": 0.3, "L1": 0.1})
    made["L1"]["degradation"] = None
    assert [point["layer_range"] for point in identify_avalanche_points(made)] == ["L0"]
    assert layer_degradation(made) == {0: 0.3}


def test_a_window_that_breaks_the_model_loses_everything() -> None:
    made = rows({"L0": 0.3, "L1": 0.1, "L2": 0.1})
    made["L1"] = {"start_layer": 1, "end_layer": 1, "failed": "not finite", "non_finite": True}
    assert identify_avalanche_points(made) == [{"layer_range": "L1", "degradation": 1.0, "severity": "CRITICAL"}]
    assert layer_degradation(made) == {0: 0.3, 1: 1.0, 2: 0.1}
    made["L1"] |= {"failed": "out of memory", "non_finite": False}
    assert [point["layer_range"] for point in identify_avalanche_points(made)] == ["L0"], "nothing is known of L1"


def test_a_layers_own_degradation_is_the_mean_over_its_windows() -> None:
    found = layer_degradation(rows({"L0-1": 0.1, "L1-2": 0.3, "L2-3": 0.2}))
    assert found == pytest.approx({0: 0.1, 1: 0.2, 2: 0.25, 3: 0.2})


def test_amplification() -> None:
    window = Estimate(0.6, 0.5, 0.7, 0.05, 50)
    layers = [Estimate(0.1, 0.09, 0.11, 0.01, 50), Estimate(0.2, 0.18, 0.22, 0.01, 50)]
    found = amplification(window, layers)
    assert found.value == pytest.approx(2.0)
    assert found.low < 2.0 < found.high
    assert found.low == pytest.approx(2.0 / (found.high / 2.0))
    assert amplification(window, [Estimate(0.0, 0.0, 0.0, 0.0, 50)]) is None
