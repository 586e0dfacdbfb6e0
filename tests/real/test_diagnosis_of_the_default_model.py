"""One diagnosis of the default model, shared by all tests here; CI hands over what the README's command made."""

import os
from pathlib import Path

import pytest

import noisescope
from noisescope.models import load
from noisescope.report import Report

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def report() -> Report:
    made = os.environ.get("NOISESCOPE_REPORT")
    if made:
        return Report.load(Path(made))
    loaded = load()
    return noisescope.diagnose(loaded.model, tokenizer=loaded.tokenizer, n_samples=8, name=loaded.name)


def test_it_costs_what_it_may(report: Report) -> None:
    cost = report.sections["cost"]
    assert cost["forward_pass_equivalents"] <= 2 * 30 + 20
    assert cost["forward_pass_equivalents"] == pytest.approx(sum(cost["by_stage"].values()))
    assert {"clean", "map", "operators", "windows", "checks", "thresholds"} <= set(cost["by_stage"])


def test_the_map_agrees_with_injection(report: Report) -> None:
    found = report.sections["map"]["agreement"]
    assert found["checked"] == 24
    assert found["spearman"]["value"] > 0.9
    assert 0.7 < found["ratio_median"] < 1.4
    assert len(report.map) == 213


def test_every_level_has_its_rows(report: Report) -> None:
    sections = report.sections
    assert set(sections["operator_analysis"]) == {
        "linear",
        "matmul",
        "softmax",
        "silu",
        "rms_norm",
        "attention",
        "residual",
        "embed",
        "final_norm",
        "head",
    }
    assert len(sections["layer_analysis"]) == 28
    assert len(sections["channel_analysis"]["per_layer"]) == 90
    assert sections["metrics"]["resumed"] is True


def test_what_is_known_of_this_model(report: Report) -> None:
    """Its head is the most fragile place but for the residual stream; its down projections have massive channels."""
    kl = {name: row["kl"]["value"] for name, row in report.sections["operator_analysis"].items()}
    assert max((name for name in kl if name != "residual"), key=kl.get) == "head"
    ratios = {path: row["max_ratio"] for path, row in report.sections["channel_analysis"]["per_layer"].items()}
    assert max(ratios, key=ratios.get).endswith("mlp.down_proj")
    assert max(ratios.values()) > 100


def test_the_summary_can_be_read(report: Report) -> None:
    text = str(report)
    assert text.startswith("Risk: ")
    assert "agrees with injection: Spearman" in text
    assert max(map(len, text.splitlines())) < 160
