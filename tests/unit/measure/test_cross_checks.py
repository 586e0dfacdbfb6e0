"""The documented checks between metrics and between levels."""

from math import isnan, nan

import numpy as np
import pytest
from scipy.stats import spearmanr

from noisescope.errors import InputError
from noisescope.measure.cross_checks import correlate_layer_and_channel_sensitivity, validate_metric_correlations

SENSITIVITY = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_every_expectation_beside_what_was_found():
    found = validate_metric_correlations(
        {
            "sensitivity": SENSITIVITY,
            "degradation": [0.01, 0.05, 0.12, 0.2, 0.22, 0.3],
            "hessian_trace": [10, 20, 30, 50, 40, 60],
            "outlier_count": [3, 1, 4, 1, 5, 9],
            "sparsity": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            "mape": [0.01, 0.02, 0.06, 0.03, 0.07, 0.08],
        }
    )
    told = {check: (result["expected"], round(result["found"], 3), result["holds"]) for check, result in found.items()}
    assert told == {
        "hessian_sensitivity": ("r > 0.7", 0.943, True),
        "outliers_sensitivity": ("r > 0.6", 0.667, True),
        "sparsity_degradation": ("r < -0.5", 1.0, False),
        "mape_degradation": ("degradation > 10% where MAPE > 5%", 1.0, True),
    }
    assert found["outliers_sensitivity"]["found"] == pytest.approx(spearmanr(SENSITIVITY, [3, 1, 4, 1, 5, 9]).statistic)
    assert found["mape_degradation"]["others"] == pytest.approx(1 / 3)
    assert found["hessian_sensitivity"]["low"] <= 0.943 <= found["hessian_sensitivity"]["high"]


def test_sparsity_is_held_against_degradation_and_the_others_against_sensitivity():
    columns = {"sensitivity": SENSITIVITY, "degradation": SENSITIVITY[::-1], "sparsity": SENSITIVITY}
    found = validate_metric_correlations({**columns, "hessian_trace": SENSITIVITY})
    assert found["sparsity_degradation"]["found"] == -1.0
    assert found["hessian_sensitivity"]["found"] == 1.0
    alone = validate_metric_correlations({"degradation": SENSITIVITY, "outlier_count": SENSITIVITY})
    assert alone["outliers_sensitivity"]["holds"] is True


@pytest.mark.parametrize(
    ("mape", "degradation", "found", "holds"),
    [
        ([0.06, 0.06, 0.01], [0.2, 0.2, 0.0], 1.0, True),
        ([0.06, 0.06, 0.06], [0.2, 0.2, 0.0], 2 / 3, True),
        ([0.06, 0.06, 0.01], [0.0, 0.2, 0.2], 0.5, False),
        ([0.06, 0.01, 0.01], [0.0, 0.2, 0.0], 0.0, False),
        ([0.05, 0.01, 0.01], [0.2, 0.2, 0.2], nan, None),
        ([0.06, nan, 0.01], [0.2, 0.0, None], 1.0, True),
    ],
)
def test_where_values_are_off_accuracy_is_expected_to_be_lost(mape, degradation, found, holds):
    result = validate_metric_correlations({"mape": mape, "degradation": degradation})["mape_degradation"]
    assert result["found"] == pytest.approx(found, nan_ok=True)
    assert result["holds"] is holds


def test_nothing_to_check_is_an_error():
    for results in ({}, {"sensitivity": SENSITIVITY}, {"sparsity": SENSITIVITY}):
        with pytest.raises(InputError, match=r"results: got .*, expected sensitivity or degradation, and at least one"):
            validate_metric_correlations(results)


def window(first: int, last: int, degradation: float) -> dict[str, float]:
    return {"start_layer": first, "end_layer": last, "degradation": degradation, "sensitivity_score": 20 * degradation}


WINDOWS = {"L0-1": window(0, 1, 0.1), "L1-2": window(1, 2, 0.3), "L2-3": window(2, 3, 0.2)}
REPORT = {
    "summary": {"total_outlier_channels": 10},
    "per_layer": {
        "model.layers.0.mlp.down_proj": {"num_outliers": 1},
        "model.layers.2.mlp.experts.7.w2": {"num_outliers": 4},
        "model.layers.2.self_attn.o_proj": {"num_outliers": 3},
        "model.layers.3.self_attn.o_proj.linear.0.forward": {"num_outliers": 2},
        "lm_head": {"num_outliers": 50},
    },
}


def test_layers_get_the_mean_of_their_windows_and_the_outliers_of_their_modules():
    rows, r = correlate_layer_and_channel_sensitivity(WINDOWS, REPORT)
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    assert [row["degradation"] for row in rows] == pytest.approx([0.1, 0.2, 0.25, 0.2])
    assert [row["sensitivity_score"] for row in rows] == pytest.approx([2.0, 4.0, 5.0, 4.0])
    assert [row["total_outliers"] for row in rows] == [1, 0, 7, 2]
    assert r == pytest.approx(spearmanr([0.1, 0.2, 0.25, 0.2], [1, 0, 7, 2]).statistic)


@pytest.mark.parametrize("prefix", ["transformer.h.", "gpt_neox.layers.", "model.decoder.layers.", ""])
def test_layers_are_found_in_any_familys_paths(prefix):
    per_layer = {f"{prefix}{layer}.mlp.fc2": {"num_outliers": layer} for layer in range(12)}
    windows = {f"L{layer}-{layer}": window(layer, layer, 0.01 * layer) for layer in range(12)}
    rows, r = correlate_layer_and_channel_sensitivity(windows, per_layer)
    assert [row["total_outliers"] for row in rows] == list(range(12))
    assert r == 1.0


def test_no_relation_without_differences():
    rows, r = correlate_layer_and_channel_sensitivity(WINDOWS, {"per_layer": {}})
    assert isnan(r)
    assert len(rows) == 4
    rows, r = correlate_layer_and_channel_sensitivity({}, REPORT)
    assert rows == []
    assert np.isnan(r)


def test_incomplete_input_is_named():
    with pytest.raises(InputError, match=r"windows\['L0-2'\]: has no end_layer start_layer"):
        correlate_layer_and_channel_sensitivity({"L0-2": {"degradation": 0.1}}, REPORT)
    with pytest.raises(InputError, match=r"outlier_report\['a.0.b'\]: has no num_outliers"):
        correlate_layer_and_channel_sensitivity(WINDOWS, {"a.0.b": {"outliers": 3}})
