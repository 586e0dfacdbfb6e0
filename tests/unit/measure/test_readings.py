"""Every threshold of the table, on the edge and on both sides of it; words, sources and errors."""

import subprocess
import sys
from math import inf, nan, nextafter

import pytest

from noisescope.errors import InputError
from noisescope.measure import readings
from noisescope.measure.metrics import noise_tolerance_index
from noisescope.measure.readings import READINGS, Band, Reading, dashboard_risk, describe, read

EDGES = {
    "relative degradation": [
        (0.05, "LOW", "MODERATE", "MODERATE"),
        (0.10, "MODERATE", "MODERATE", "HIGH"),
        (0.20, "HIGH", "HIGH", "CRITICAL"),
    ],
    "sensitivity score": [(1.5, "ROBUST", "MODERATE", "MODERATE"), (3, "MODERATE", "MODERATE", "CRITICAL")],
    "noise tolerance index": [
        (5, "POOR", "FAIR", "FAIR"),
        (10, "FAIR", "GOOD", "GOOD"),
        (20, "GOOD", "GOOD", "EXCELLENT"),
    ],
    "critical threshold": [
        (0.02, "CRITICAL", "HIGH", "HIGH"),
        (0.05, "HIGH", "MODERATE", "MODERATE"),
        (0.10, "MODERATE", "MODERATE", "LOW"),
    ],
    "SNR": [(20, "POOR", "FAIR", "FAIR"), (30, "FAIR", "GOOD", "GOOD"), (40, "GOOD", "GOOD", "EXCELLENT")],
    "gradient ratio": [
        (0.5, "CRITICAL", "CONCERNING", "CONCERNING"),
        (0.7, "CONCERNING", "MODERATE", "MODERATE"),
        (0.9, "MODERATE", "STABLE", "STABLE"),
        (1.1, "STABLE", "STABLE", "MODERATE"),
        (1.3, "MODERATE", "MODERATE", "CONCERNING"),
        (1.5, "CONCERNING", "CONCERNING", "CRITICAL"),
    ],
    "sparsity": [(0.30, "tends sensitive", "", ""), (0.70, "", "", "tends robust")],
    "MAE": [
        (1e-4, "negligible", "acceptable", "acceptable"),
        (1e-3, "acceptable", "investigate", "investigate"),
        (1e-2, "investigate", "critical", "critical"),
    ],
    "MAPE": [
        (0.01, "excellent", "good", "good"),
        (0.05, "good", "moderate", "moderate"),
        (0.10, "moderate", "significant", "significant"),
    ],
    "Pearson r": [
        (0.90, "poor", "moderate", "moderate"),
        (0.95, "moderate", "good", "good"),
        (0.99, "good", "good", "excellent"),
    ],
    "outlier ratio": [
        (10, "no outlier", "no outlier", "MODERATE"),
        (20, "MODERATE", "MODERATE", "HIGH"),
        (50, "HIGH", "HIGH", "CRITICAL"),
    ],
    "risk score": [(50, "LOW", "LOW", "MODERATE"), (100, "MODERATE", "MODERATE", "HIGH")],
    "dashboard risk": [
        (30, "LOW RISK", "LOW RISK", "MODERATE RISK"),
        (60, "MODERATE RISK", "MODERATE RISK", "HIGH RISK"),
    ],
}
"""edge, and the readings just below it, on it and just above it; written from the specification, not from the code"""

INFINITE = {
    "relative degradation": ("LOW", "CRITICAL"),
    "sensitivity score": ("ROBUST", "CRITICAL"),
    "noise tolerance index": ("POOR", "EXCELLENT"),
    "critical threshold": ("CRITICAL", "LOW"),
    "SNR": ("POOR", "EXCELLENT"),
    "gradient ratio": ("CRITICAL", "CRITICAL"),
    "outlier ratio": ("no outlier", "CRITICAL"),
}


@pytest.mark.parametrize(("metric", "edge"), [(metric, edge) for metric, edges in EDGES.items() for edge in edges])
def test_each_side_of_each_edge(metric, edge):
    at, below, on, above = edge
    assert read(metric, nextafter(at, -inf)) == below
    assert read(metric, at) == on
    assert read(metric, nextafter(at, inf)) == above


def test_no_edge_is_forgotten():
    edges = {
        row.metric: sorted({edge for band in row.bands for edge in (band.low, band.high)} - {-inf, inf})
        for row in READINGS.values()
        if row.bands
    }
    assert edges == {metric: [edge[0] for edge in found] for metric, found in EDGES.items()}


@pytest.mark.parametrize("metric", INFINITE)
def test_infinity_is_in_the_last_band(metric):
    assert (read(metric, -inf), read(metric, inf)) == INFINITE[metric]


@pytest.mark.parametrize("metric", READINGS)
def test_what_is_no_number(metric):
    assert read(metric, nan) == "undefined"
    assert read(metric, None) == "none"


def test_noise_that_helps_is_a_low_degradation_without_a_tolerance_index():
    assert read("relative degradation", -0.02) == "LOW"
    assert read("noise tolerance index", noise_tolerance_index(-0.02)) == "none"


@pytest.mark.parametrize("degradation", [0.01, 0.05, 0.07, 0.10, 0.15, 0.20, 0.5])
def test_tolerance_and_degradation_read_alike(degradation):
    """They are the same figure, so that a row of a report must not say two things, on edges either."""
    words = [band.word for band in READINGS["relative degradation"].bands]
    inverted = [band.word for band in READINGS["noise tolerance index"].bands]
    place = words.index(read("relative degradation", degradation))
    assert inverted.index(read("noise tolerance index", noise_tolerance_index(degradation))) == place


@pytest.mark.parametrize(
    "metric", ["SQNR", "cosine", "max abs error", "KL", "flip rate", "perplexity", "Hessian trace"]
)
def test_metrics_without_bands_have_no_reading(metric):
    assert read(metric, 1.0) == ""
    assert "thresholds" not in describe(metric)


def test_every_threshold_says_where_it_comes_from():
    for row in READINGS.values():
        assert bool(row.source) == bool(row.bands)
        assert row.source in row.describe()
        assert "\n" not in row.describe()


def test_describe():
    assert describe("MAPE") == (
        "MAPE: mean of abs difference / (abs reference + 1e-8); < 1% excellent, < 5% good, < 10% moderate, "
        "else significant; misleads where the reference is near zero: see SQNR beside it "
        "(thresholds: rule of thumb of the method)"
    )
    assert describe("SNR").startswith("SNR (dB): 20 log10(")
    assert "; <= 10 no outlier, 10-20 MODERATE, 20-50 HIGH, > 50 CRITICAL (" in describe("outlier ratio")
    assert "5%-10% MODERATE" in describe("relative degradation")


@pytest.mark.parametrize("ask", [lambda: read("relative degradatoin", 1.0), lambda: describe("relative degradatoin")])
def test_an_unknown_metric(ask):
    with pytest.raises(InputError, match='unknown metric "relative degradatoin", did you mean "relative degradation"'):
        ask()


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        READINGS["MAE"] = READINGS["MAPE"]
    with pytest.raises(AttributeError):
        READINGS["MAE"].bands = ()


def test_two_rows_for_one_metric_are_refused():
    with pytest.raises(InputError, match='metric "MAE": there are two rows'):
        readings._table([Reading("MAE", "x"), Reading("MAE", "y")])


def test_thresholds_without_a_source_are_refused():
    with pytest.raises(InputError, match='metric "MAE": its thresholds do not say where'):
        readings._table([Reading("MAE", "x", (Band("all"),))])


@pytest.mark.parametrize(
    ("degradation", "mape", "points", "reading"),
    [
        (0.05, 0.05, 0, "LOW RISK"),
        (0.051, None, 10, "LOW RISK"),
        (0.051, 0.051, 25, "LOW RISK"),
        (0.10, 0.10, 25, "LOW RISK"),
        (0.11, None, 30, "LOW RISK"),
        (0.11, 0.06, 45, "MODERATE RISK"),
        (0.20, 0.11, 60, "MODERATE RISK"),
        (0.21, None, 50, "MODERATE RISK"),
        (0.21, 0.06, 65, "HIGH RISK"),
        (0.21, 0.11, 80, "HIGH RISK"),
        (-0.1, 0.0, 0, "LOW RISK"),
    ],
)
def test_dashboard_risk(degradation, mape, points, reading):
    assert dashboard_risk(degradation, mape) == points
    assert read("dashboard risk", dashboard_risk(degradation, mape)) == reading


@pytest.mark.parametrize(("degradation", "mape"), [(nan, 0.0), (0.5, nan), (nan, None)])
def test_what_could_not_be_measured_is_not_a_low_risk(degradation, mape):
    assert read("dashboard risk", dashboard_risk(degradation, mape)) == "undefined"


def test_reports_read_it_without_torch():
    code = "import sys, noisescope.measure.readings; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
