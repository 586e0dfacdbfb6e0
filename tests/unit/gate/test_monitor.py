"""RobustnessMonitor, in the words of the method documents."""

from pathlib import Path
from typing import Any

import pytest
import torch

import noisescope as ns
from noisescope.errors import InputError
from noisescope.gate.history import Entry, append

Loaded = tuple[torch.nn.Module, Any]


def test_the_documented_keys(llama: Loaded, baseline: ns.Baseline, tmp_path: Path) -> None:
    model, tokenizer = llama
    monitor = ns.RobustnessMonitor(baseline.save(tmp_path / "b.json"), resolution=0.2, history_file=tmp_path / "h")
    first = monitor.check_checkpoint(model, None, 1000, tokenizer=tokenizer)
    assert list(first)[:4] == ["checkpoint_step", "pass", "max_degradation", "warnings"]
    assert (first["checkpoint_step"], first["pass"], first["warnings"]) == (1000, True, [])
    second = monitor.check_checkpoint(model, None, checkpoint_step=2000, tokenizer=tokenizer)
    assert monitor.history == [first, second]
    assert len((tmp_path / "h").read_text().splitlines()) == 3
    (axes,) = monitor.plot_robustness_trend().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1000", "2000"]


def test_a_report_is_good_for_warnings_and_a_limit(llama: Loaded) -> None:
    """What `operator_level_diagnosis` returns, said to be twice as good as it is."""
    model, tokenizer = llama
    data = ns.open_data(None, tokenizer, n_samples=24, max_length=16)
    rows = ns.operator_level_diagnosis(model, data, noise_scale=0.05)
    better = {name: {**row, "degradation": row["degradation"] - 0.1} for name, row in rows.items()}
    monitor = ns.RobustnessMonitor(better, max_degradation=0.9)
    found = monitor.check_checkpoint(model, data, 7)
    assert found["pass"] is True
    assert {row["operator"] for row in found["warnings"]} == set(rows)
    head = next(row for row in found["warnings"] if row["operator"] == "head")
    assert set(head) == {"operator", "baseline", "current", "severity", "significant"}
    assert head["baseline"] == pytest.approx(rows["head"]["degradation"] - 0.1)
    assert head["current"] == pytest.approx(rows["head"]["degradation"])
    assert head["severity"] == rows["head"]["severity"]
    assert head["significant"] is False


def test_what_is_no_baseline_is_refused() -> None:
    with pytest.raises(InputError, match="baseline: got int, expected a baseline, its file or a report"):
        ns.RobustnessMonitor(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="baseline: a report without operators"):
        ns.RobustnessMonitor({"operator_analysis": {}})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"linear": 0.1}, "baseline: linear: got 0.1, expected a mapping with its degradation; pass a report"),
        ({"operator_analysis": None}, "baseline: operator_analysis: got None, expected operators"),
        ({"linear": {"degradation": "x"}}, 'baseline: linear: degradation: got "x", expected a number'),
        ({"linear": {"degradation": float("nan")}}, "baseline: linear: degradation: got nan, expected a number"),
        ({"linear": {"degradation": 0.1, "degradation_interval": 3}}, "expected two numbers"),
        ({"operator_analysis": {"linear": {"degradation": 0.1}}, "config": 3}, "baseline: config: got 3"),
    ],
)
def test_mappings_that_are_no_report_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        ns.RobustnessMonitor(given)
    assert len(str(caught.value).splitlines()) == 1


def test_a_history_of_another_measurement_is_refused_before_anything_is_measured(
    llama: Loaded, baseline: ns.Baseline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "h", {"noise_scale": 0.2}, Entry("old", "passed", 0.4, {}, "w", "b", 9.0))
    monkeypatch.setattr("noisescope.gate.checking.evaluate", None)
    with pytest.raises(InputError, match="use another history file"):
        ns.RobustnessMonitor(baseline, history_file=tmp_path / "h").check_checkpoint(
            llama[0], None, 1, tokenizer=llama[1]
        )


def test_nothing_to_draw(baseline: ns.Baseline) -> None:
    with pytest.raises(InputError, match="no checkpoint was checked yet"):
        ns.RobustnessMonitor(baseline).plot_robustness_trend()
