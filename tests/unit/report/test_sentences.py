"""What a report says in words: of the place that is worst, at the noise that was there, and no more than was shown."""

from copy import deepcopy
from typing import Any

import pytest

from noisescope.report.rows import fragile
from noisescope.report.sentences import channels, critical_noise, verdict
from odd_reports import failed_row

pytestmark = pytest.mark.usefixtures("one_thread")


def lossy(sections: dict[str, Any], level: str, name: str, low: float = 0.4) -> dict[str, Any]:
    """The report with one place far worse than the others."""
    found = deepcopy(sections)
    found[level][name] |= {"degradation": 0.6, "degradation_interval": [low, 0.8], "severity": "CRITICAL"}
    return found


def test_the_verdict_names_the_noise_that_was_there(sections: dict[str, Any]) -> None:
    sections["config"] |= {"noise_scale": 0.05, "layer_noise_scale": 0.2}
    window = next(iter(sections["layer_analysis"]))
    assert verdict(lossy(sections, "operator_analysis", "linear")) == (
        "Most fragile is linear: noise of scale 0.05 there costs 60.0% [40.0, 80.0] of the accuracy."
    )
    assert verdict(lossy(sections, "layer_analysis", window)) == (
        f"Most fragile is {window}: noise of scale 0.2 there costs 60.0% [40.0, 80.0] of the accuracy."
    )


def test_a_loss_that_may_be_none_is_not_claimed(sections: dict[str, Any]) -> None:
    for row in (*sections["operator_analysis"].values(), *sections["layer_analysis"].values()):
        row |= {"degradation": 0.01, "degradation_interval": [-0.1, 0.1], "severity": "LOW"}
    assert verdict(sections).startswith(
        "Nowhere is a loss of accuracy to be seen; noise of scale 0.05 moves the output"
    )
    most = max(fragile(sections), key=lambda row: row.kl.value)
    assert f" most at {most.name}, by {most.kl} nats per token." in verdict(sections)


def test_what_failed_is_said_before_all_else(sections: dict[str, Any]) -> None:
    sections["operator_analysis"]["silu"] = failed_row("not finite at x")
    assert verdict(sections).startswith("Noise at silu makes the output non-finite")
    sections["operator_analysis"]["silu"] = failed_row("out of memory", non_finite=False)
    assert "silu" not in verdict(sections)
    for level in ("operator_analysis", "layer_analysis"):
        ends = {"start_layer": 0, "end_layer": 1} if level == "layer_analysis" else {}
        sections[level] = {name: failed_row("out of memory", non_finite=False, **ends) for name in sections[level]}
    assert verdict(sections).startswith("Nothing could be measured: ")


def test_the_target_of_a_critical_noise_is_the_one_that_was_asked_for(sections: dict[str, Any]) -> None:
    sections["config"]["target_degradation"] = 0.3
    rows = sections["metrics"]["critical_thresholds"]
    name = next(iter(rows))
    rows[name] |= {"how": "measured", "critical_threshold": 0.0123}
    assert critical_noise(sections).startswith("Critical noise, the smallest that costs 30% of the accuracy: ")
    assert f"{name} 0.012" in critical_noise(sections)


def test_channels_are_counted_over_all_modules(sections: dict[str, Any]) -> None:
    found = sections["channel_analysis"]["per_layer"]
    total = sum(row["num_outliers"] for row in found.values())
    assert channels(sections).startswith(f"{total} outlier channel" if total else "No outlier channels in ")
    sections["channel_analysis"] = {}
    assert channels(sections) == ""
