"""The names of the method documents: their arguments by position, and the keys and types that scripts rely on."""

import inspect
import re
from copy import deepcopy
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import noisescope as ns
import noisescope.noisy_ops
from families import CONFIGS, build, tokens
from noisescope.errors import InputError, ModelError, NonFinite, NothingMatched
from noisescope.measure.texts import built_in_text
from noisescope.report import Report
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")

Batches = list[dict[str, torch.Tensor]]
Rows = dict[str, dict[str, Any]]

SIGNATURES = {
    "operator_level_diagnosis": "model, test_data, noise_scale=0.05",
    "sliding_window_diagnosis": "model, test_data, window_size=3, noise_scale=0.05, step_size=1",
    "identify_avalanche_points": "windows, threshold=0.15",
    "plot_sensitivity_heatmap": "windows, window_size=3",
    "capture_layer_output": "model, layer_id, inputs",
    "ActivationCapture": "model, layer_patterns",
    "ActivationCapture.register_hooks": "",
    "ActivationCapture.remove_hooks": "",
    "ActivationCapture.detect_outliers": "threshold",
    "ChannelOutlierDetector": "model, calibration_data, quantile_threshold=10.0",
    "ChannelOutlierDetector.collect_statistics": "",
    "ChannelOutlierDetector.get_report": "",
    "ChannelOutlierDetector.apply_smoothquant_scaling": "alpha=0.5",
    "correlate_layer_and_channel_sensitivity": "windows, outlier_report",
    "validate_metric_correlations": "results",
    "find_critical_threshold": "model, test_data, target_degradation=0.1",
    "estimate_fim_diagonal": "model, batches",
    "estimate_hessian_trace": "model, loss_fn, data, num_samples=10",
    "compute_layer_hessian_trace": "model, loss_fn, data, num_samples=10",
    "MetricsDashboard": "",
    "MetricsDashboard.compute_all_metrics": "model, test_data, gpu_activations=None, npu_activations=None",
    "MetricsDashboard.print_dashboard": "",
    "MetricsDashboard.get_risk_assessment": "",
    "IntegratedDiagnostic": "model, test_data, calibration_data",
    "IntegratedDiagnostic.run_full_diagnosis": "noise_scale=0.05, window_size=3, outlier_threshold=10.0",
    "IntegratedDiagnostic.generate_report": "",
    "IntegratedDiagnostic.save_report": "path",
    "plan_hardware_migration": "model, test_data, calibration_data",
    "generate_mixed_precision_config": "sensitivity_profile, target_avg_bits=6",
    "assign_precision": "sensitivity_profile, target_avg_bits=6",
    "FaultInjectionTestGenerator": "report",
    "FaultInjectionTestGenerator.generate_test_cases": "",
    "FaultInjectionTestGenerator.export_to_csv": "cases, path",
    "RobustnessMonitor": "baseline",
    "RobustnessMonitor.check_checkpoint": "model, test_data, checkpoint_step",
    "RobustnessMonitor.plot_robustness_trend": "",
    "AdaptiveAQN": "model, sensitivity_profile",
    "AdaptiveAQN.get_layer_noise_scale": "layer_id",
    "AdaptiveAQN.enable_adaptive_noise": "",
}
"""as documented, without what noisescope adds behind"""
NOT_YET = ("AdaptiveAQN",)
"""names, with what is in them, that may still be missing; once they are there they are held to their arguments"""
METRICS = ("snr", "sparsity", "gradient_ratio", "mae", "mape", "correlation", "max_error", "kl_divergence")
PAGE = (Path(__file__).parents[3] / "docs" / "method-names.md").read_text()


def is_missing(name: str) -> bool:
    owner, _, method = name.partition(".")
    return not hasattr(getattr(ns, owner, None), method) if method else not hasattr(ns, owner)


@pytest.mark.parametrize("name", SIGNATURES)
def test_documented_arguments_in_their_order(name: str) -> None:
    owner, _, method = name.partition(".")
    if is_missing(name) and (name in NOT_YET or owner in NOT_YET):
        pytest.skip(f"{name} is not there yet")
    found: Any = getattr(ns, owner)
    found = getattr(found, method) if method else found
    given = [p for p in inspect.signature(found).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    given = [p for p in given if p.name != "self"]
    wanted = [part.split("=") for part in SIGNATURES[name].split(", ") if part]
    assert [p.name for p in given][: len(wanted)] == [part[0] for part in wanted]
    defaults = {part[0]: part[1] for part in wanted if len(part) == 2}
    assert {p.name: str(p.default) for p in given if p.name in defaults} == defaults
    assert all(p.default is not p.empty for p in given[len(wanted) :]), "what is added has a default"


def test_the_page_has_every_name_with_its_arguments() -> None:
    python = PAGE.partition("## Python")[2].partition("## Commands")[0]
    table = "".join(line.rpartition(" | ")[0] for line in python.splitlines() if line.startswith("|"))
    told = re.findall(r"`([\w.]+)\(([^`]*)\)`", table)
    assert dict(told) == SIGNATURES
    plain = re.findall(r"`(\w+)`", table)
    once = [*(name for name, _ in told), *plain]
    assert len(once) == len(set(once)), "every name is there once"
    assert {f"compute_{name}" for name in METRICS} <= set(plain)
    for name in plain:
        assert hasattr(ns, name) or hasattr(ns.noisy_ops, name), f"{name} is on the page, and nowhere else"


def test_the_page_has_every_command_and_every_reason() -> None:
    commands = PAGE.partition("## Commands")[2].partition("## Environment")[0]
    scripts = "diagnose_model layer_sensitivity_diagnosis diagnose_layer_sensitivity detect_outlier_channels"
    others = "generate_diagnostic_report srdd_error_finder error_source_finder validate_hardware_migration"
    for script in (*scripts.split(), *others.split(), "check_robustness"):
        assert f"`{script}.py" in commands
    left = PAGE.partition("## Not carried over")[2]
    whats = ("`Noisy*`", "`.pt`", "a date", "overlapping", "4096 x 28", "layer number", "mean", "0.2", "`matmul`")
    assert len(re.findall(r"^\| [^-w]", left, re.MULTILINE)) == len(whats)
    assert all(what in left for what in whats)


# --- on a trained model -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> tuple[nn.Module, Batches]:
    model, tokenizer = fixture("llama")
    ids = tokenizer(built_in_text()[:2000])["input_ids"][: 8 * 12]
    return model, [{"input_ids": torch.tensor(ids).view(8, 12)}]


@pytest.fixture(scope="module")
def windows(llama: tuple[nn.Module, Batches]) -> Rows:
    return ns.sliding_window_diagnosis(*llama, 3, 0.05, 2)


def check_plain(value: Any) -> None:
    """Nothing but dictionaries with plain keys, lists, numbers and texts."""
    if type(value) is dict:
        assert all(type(key) in (str, int) for key in value)
        for part in value.values():
            check_plain(part)
    elif type(value) is list:
        for part in value:
            check_plain(part)
    else:
        assert type(value) in (int, float, str, bool, type(None)), type(value)


def check_row(row: dict[str, Any], noise_scale: float) -> None:
    """The documented keys, and how they hang together."""
    assert {"degradation", "sensitivity_score", "baseline_acc", "noisy_acc"} <= set(row)
    lost = (row["baseline_acc"] - row["noisy_acc"]) / row["baseline_acc"]
    assert row["degradation"] == pytest.approx(lost)
    assert row["sensitivity_score"] == pytest.approx(lost / noise_scale)
    check_plain(row)


def test_operators(llama: tuple[nn.Module, Batches]) -> None:
    found = ns.operator_level_diagnosis(*llama, 0.1)
    assert set(found) == {
        *("linear", "matmul", "softmax", "silu", "rms_norm", "attention", "residual"),
        *("embed", "final_norm", "head"),
    }
    for row in found.values():
        check_row(row, 0.1)
    losses = [row["degradation"] for row in found.values()]
    assert losses == sorted(losses, reverse=True)
    by_hand = accuracy(llama, layers=range(8), operators="linear", noise=0.1)
    assert found["linear"]["noisy_acc"] == pytest.approx(by_hand)
    assert found["linear"]["baseline_acc"] == pytest.approx(accuracy(llama, operators="linear", noise=0.0))


def accuracy(llama: tuple[nn.Module, Batches], *, noise: float, **where: Any) -> float:
    """Next tokens that are right, by the public context manager."""
    model, batches = llama
    right = 0
    with torch.no_grad(), ns.inject(model, ns.RelativeGaussian(noise), **where):
        for batch in batches:
            logits = model(**batch, use_cache=False).logits
            right += int((logits[:, :-1].argmax(-1) == batch["input_ids"][:, 1:]).sum())
    return right / (8 * 11)


def test_windows(windows: Rows) -> None:
    assert list(windows) == ["L0-2", "L2-4", "L4-6", "L5-7"]
    for name, row in windows.items():
        assert name == f"L{row['start_layer']}-{row['end_layer']}"
        assert row["total_injections"] == 3 * 15  # layers x operator calls of a layer
        check_row(row, 0.05)


def test_what_windows_are_used_for(windows: Rows) -> None:
    planted = deepcopy(windows)
    planted["L2-4"]["degradation"] = 0.4
    planted["L5-7"]["degradation"] = 0.0
    (found,) = ns.identify_avalanche_points(planted, 0.15)
    assert found == {"layer_range": "L2-4", "degradation": 0.4, "severity": "CRITICAL"}
    report = {"per_layer": {f"model.layers.{at}.mlp.down_proj": {"num_outliers": 9 - abs(3 - at)} for at in range(8)}}
    rows, r = ns.correlate_layer_and_channel_sensitivity(planted, report)
    assert [row["layer"] for row in rows] == list(range(8))
    assert type(r) is float
    assert -1 <= r <= 1
    check_plain(rows)


def test_a_heat_map_is_a_figure_that_can_be_saved(windows: Rows, tmp_path: Path) -> None:
    figure = ns.plot_sensitivity_heatmap(windows, 3)
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    strip, bars = figure.axes[:2]
    assert strip.images[0].get_array().shape == (1, 8)
    assert len(bars.collections) == 2 * len(windows)
    assert all(float(tick).is_integer() for tick in bars.get_xticks())


def test_a_heat_map_of_nothing_lost_is_pale_and_of_nothing_measured_refused(windows: Rows) -> None:
    gained = {name: {**row, "degradation": -0.1} for name, row in windows.items()}
    assert ns.plot_sensitivity_heatmap(gained).axes[0].images[0].get_clim() == (0.0, 1.0)
    failed = {name: {"start_layer": 0, "end_layer": 2, "failed": "why", "non_finite": False} for name in windows}
    one = {**failed, "L2-4": windows["L2-4"]}
    assert len(ns.plot_sensitivity_heatmap(one).axes[1].collections) == 2
    with pytest.raises(InputError, match="windows: none with a degradation"):
        ns.plot_sensitivity_heatmap(failed)


def test_a_layers_output_is_the_hidden_state(llama: tuple[nn.Module, Batches]) -> None:
    model, (batch,) = llama
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states
    for layer in range(7):
        assert torch.equal(ns.capture_layer_output(model, layer, batch), hidden[layer + 1])
    last = ns.capture_layer_output(model, 7, batch["input_ids"])
    with torch.no_grad():
        assert torch.equal(model.model.norm(last), hidden[8]), "transformers shows the last one after the norm"
    assert not last.requires_grad
    with pytest.raises(NothingMatched, match="layer_id: 8 is out of range, the model has 0 to 7"):
        ns.capture_layer_output(model, 8, batch)
    with pytest.raises(NothingMatched, match="layer_id: -1 is out of range"):
        ns.capture_layer_output(model, -1, batch)
    with pytest.raises(InputError, match="layer_id: got 'head', expected the index of a layer"):
        ns.capture_layer_output(model, "head", batch)


def test_a_layers_output_where_blocks_return_tuples() -> None:
    model, given = build("gptj"), tokens("gptj")
    with torch.no_grad():
        hidden = model(**given, output_hidden_states=True).hidden_states
    assert torch.equal(ns.capture_layer_output(model, 1, given), hidden[2])


def test_the_critical_threshold_is_where_the_accuracy_is_lost(llama: tuple[nn.Module, Batches]) -> None:
    found = ns.find_critical_threshold(*llama, 0.10)
    assert type(found) is float
    clean = accuracy(llama, noise=0.0, operators="linear")
    at, below = (1 - accuracy(llama, noise=scale) / clean for scale in (found, found - 0.001))
    assert below <= 0.10 < at
    assert ns.find_critical_threshold(*llama, 0.90, layers=7, operators="softmax") is None


def test_a_threshold_needs_something_to_lose() -> None:
    """Random weights: no better than chance, so that a loss of accuracy means nothing."""
    with pytest.raises(InputError, match=r"is no better than chance, .*; there is nothing to lose, pass data"):
        ns.find_critical_threshold(build("llama"), [tokens(rows=4)])


# --- channels, curvature, metrics -------------------------------------------------------------------------------

OUTLIER_KEYS = {
    "outlier_indices",
    "num_outliers",
    "total_channels",
    "outlier_percentage",
    "outlier_ratios",
    "max_ratio",
    "median_max",
    "global_max",
}


def test_outlier_channels(llama: tuple[nn.Module, Batches]) -> None:
    model, batches = llama
    capture = ns.ActivationCapture(model, ["mlp.down_proj"])
    capture.register_hooks()
    for batch in batches:
        with torch.no_grad():
            model(**batch)
    capture.remove_hooks()
    found = capture.detect_outliers(2.0)
    assert list(found) == [f"model.layers.{layer}.mlp.down_proj" for layer in range(8)]
    assert all(set(row) == OUTLIER_KEYS for row in found.values())
    assert any(row["num_outliers"] for row in found.values())
    check_plain(found)
    detector = ns.ChannelOutlierDetector(model, batches, 2.0)
    detector.collect_statistics()
    report = detector.get_report()
    assert set(report) == {"summary", "per_layer"}
    assert set(report["summary"]) == {"layers_with_outliers", "total_outlier_channels"}
    assert report["per_layer"]["model.layers.3.mlp.down_proj"] == found["model.layers.3.mlp.down_proj"]
    check_plain(report)


def test_smoothquant_is_really_applied() -> None:
    model, batches = build("llama"), [tokens(rows=4)]
    before = [parameter.clone() for parameter in model.parameters()]
    logits = model(**batches[0]).logits.detach()
    detector = ns.ChannelOutlierDetector(model, batches, 2.0, layer_patterns="mlp.up_proj")
    outliers = detector.get_report()
    found = detector.apply_smoothquant_scaling(alpha=0.75)
    assert found.model is model
    assert {row.alpha for row in found.groups} == {0.75}
    assert not all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert torch.allclose(model(**batches[0]).logits, logits, rtol=0, atol=1e-4 * float(logits.std()))
    assert detector.get_report() != outliers


def test_curvature() -> None:
    model, batches = build("llama"), [tokens(rows=2)]
    fisher = ns.estimate_fim_diagonal(model, batches)
    assert set(fisher) == {name for name, _ in model.named_parameters()}
    assert all(
        bool((fisher[name] >= 0).all()) and fisher[name].shape == p.shape for name, p in model.named_parameters()
    )

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(**batch, labels=batch["input_ids"]).loss

    whole = ns.estimate_hessian_trace(model, loss, batches, 2)
    layers = ns.compute_layer_hessian_trace(model, loss, batches, 2)
    assert type(whole) is float
    assert set(layers) == {0, 1, 2, "embed", "final_norm", "head"}
    assert whole == pytest.approx(sum(layers.values()))


def test_metrics() -> None:
    good, other = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.2, 4.0])
    assert ns.compute_mae(good, other) == pytest.approx(0.2 / 3)
    assert ns.compute_mape(good, other) == pytest.approx(0.1 / 3)
    assert ns.compute_max_error(good, other) == pytest.approx(0.2)
    assert ns.compute_correlation(good, other) == pytest.approx(torch.corrcoef(torch.stack([good, other]))[0, 1].item())
    assert ns.compute_snr(good, other) == pytest.approx(20 * torch.tensor(7 / 0.2).log10().item(), rel=1e-5)
    assert ns.compute_sparsity(torch.tensor([0.0, 1e-7, 1.0, 2.0])) == 0.5
    assert ns.compute_gradient_ratio([good], [2 * good]) == pytest.approx(2.0)
    logits = torch.tensor([[0.0, 1.0]])
    assert ns.compute_kl_divergence(logits, logits + 3.0) == pytest.approx(0.0)
    found = ns.validate_metric_correlations({"sensitivity": [1, 2, 3, 4], "sparsity": [0.9, 0.5, 0.4, 0.1]})
    assert found["sparsity_degradation"]["holds"]
    check_plain(found)


# --- the dashboard ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dashboard(llama: tuple[nn.Module, Batches]) -> ns.MetricsDashboard:
    made = ns.MetricsDashboard()
    good = {"a": torch.arange(1.0, 9.0), "b": torch.ones(2, 4)}
    made.compute_all_metrics(*llama, good, {name: value * 1.2 for name, value in good.items()})
    return made


def test_the_dashboard(dashboard: ns.MetricsDashboard, llama: tuple[nn.Module, Batches]) -> None:
    found = dashboard.metrics
    assert set(found) == {"primary", "secondary", "hardware"}
    check_plain(found)
    check_row(found["primary"], 0.05)
    assert found["primary"]["noisy_acc"] == pytest.approx(accuracy(llama, noise=0.05))
    assert found["hardware"]["mape"] == pytest.approx(0.2, rel=1e-6)
    assert 0.5 < found["secondary"]["gradient_ratio"] < 2.0
    assert found["secondary"]["snr_db"] == pytest.approx(28.0, abs=0.5)
    assert 0 <= found["secondary"]["sparsity"] < 0.1


def test_the_risk_of_a_device(dashboard: ns.MetricsDashboard) -> None:
    found = dashboard.get_risk_assessment()
    lost = dashboard.metrics["primary"]["degradation"]
    points = 30 + (50 if lost > 0.2 else 30 if lost > 0.1 else 10 if lost > 0.05 else 0)
    assert found == {
        "score": points,
        "level": "HIGH RISK" if points > 60 else "MODERATE RISK" if points > 30 else "LOW RISK",
    }


def test_the_dashboard_is_printed_with_its_readings(
    dashboard: ns.MetricsDashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    dashboard.print_dashboard()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if " " not in line] == ["primary", "secondary", "hardware"]
    assert "mape 0.2 significant" in lines
    assert any(line.startswith("degradation ") and line.split()[-1].isupper() for line in lines)
    risk = dashboard.get_risk_assessment()
    assert lines[-1] == f"risk: {risk['level']} ({risk['score']:g})"


def test_a_dashboard_without_devices_or_accuracy_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights: no accuracy to lose."""
    made = ns.MetricsDashboard(0.02)
    found = made.compute_all_metrics(build("llama"), [tokens(rows=4)])
    assert found["hardware"] == {}
    if not found["primary"]["baseline_acc"]:
        assert isnan(found["primary"]["degradation"])
    made.print_dashboard()
    assert "hardware" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("good", "suspect"),
    [
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}),
        ({"a": torch.ones(2)}, torch.ones(2)),
        (torch.ones(2), None),
        (None, torch.ones(2)),
        ({}, {}),
    ],
)
def test_activations_that_do_not_belong_together(good: Any, suspect: Any) -> None:
    with pytest.raises(
        InputError, match=r"gpu_activations, npu_activations: got .*, expected both, with the same names"
    ):
        ns.MetricsDashboard().compute_all_metrics(build("llama"), [tokens(rows=4)], good, suspect)


def test_activations_of_another_shape() -> None:
    """Two times three are as many values as three times two, but others."""
    good, suspect = ({"a": torch.ones(shape)} for shape in ((2, 3), (3, 2)))
    with pytest.raises(InputError, match=r"npu_activations: a: got shape \[3, 2\], expected \[2, 3\]"):
        ns.MetricsDashboard().compute_all_metrics(build("llama"), [tokens(rows=4)], good, suspect)


def test_asking_too_early(llama: tuple[nn.Module, Batches]) -> None:
    with pytest.raises(InputError, match=r"no metrics yet; call compute_all_metrics\(\) first"):
        ns.MetricsDashboard().get_risk_assessment()
    with pytest.raises(InputError, match=r"no report yet; call run_full_diagnosis\(\) first"):
        ns.IntegratedDiagnostic(*llama, llama[1]).generate_report()


def test_noise_that_breaks_the_model_is_said() -> None:
    with pytest.raises(NonFinite, match="under this noise the model gives non-finite logits"):
        ns.MetricsDashboard(1e38).compute_all_metrics(build("llama"), [tokens(rows=4)])


# --- the whole --------------------------------------------------------------------------------------------------


def test_the_integrated_diagnosis(llama: tuple[nn.Module, Batches], tmp_path: Path) -> None:
    model, batches = llama
    diagnostic = ns.IntegratedDiagnostic(model, batches, [{"input_ids": batches[0]["input_ids"][:4]}])
    found = diagnostic.run_full_diagnosis(0.1, 4, 8.0)
    assert diagnostic.generate_report() == found
    assert found["config"]["noise_scale"] == 0.1
    assert found["config"]["outlier_threshold"] == 8.0
    assert list(found["layer_analysis"]) == ["L0-3", "L1-4", "L2-5", "L3-6", "L4-7"]
    for row in (*found["operator_analysis"].values(), *found["layer_analysis"].values()):
        check_row(row, 0.1)
    per_layer = found["channel_analysis"]["per_layer"]
    assert all(set(row) >= OUTLIER_KEYS for row in per_layer.values())
    assert {row["samples"] for row in per_layer.values()} == {4}
    for advice in found["recommendations"]:
        assert set(advice) == {"priority", "component", "issue", "action", "evidence", "command"}
    check_plain(found)
    written = diagnostic.save_report(tmp_path / "new" / "report.v1")
    assert [path.name for path in written] == ["report.v1.md", "report.v1.html", "report.v1.json"]
    assert sorted((tmp_path / "new").iterdir()) == sorted(written)
    assert Report.load(tmp_path / "new" / "report.v1.json").to_json() == Report(found).to_json()


# --- models that none of this is for ----------------------------------------------------------------------------

CALLS = {
    "operator_level_diagnosis": ns.operator_level_diagnosis,
    "sliding_window_diagnosis": ns.sliding_window_diagnosis,
    "find_critical_threshold": ns.find_critical_threshold,
    "MetricsDashboard": lambda *given: ns.MetricsDashboard().compute_all_metrics(*given),
    "IntegratedDiagnostic": lambda *given: ns.IntegratedDiagnostic(*given).run_full_diagnosis(),
}


@pytest.mark.parametrize("name", CALLS)
def test_models_and_data_that_cannot_be_meant(name: str) -> None:
    call, data = CALLS[name], [tokens(rows=4)]
    with pytest.raises(ModelError, match="BertModel: expected a causal language model"):
        call(build("bert"), data)
    with pytest.raises(InputError, match="training mode"):
        call(build("llama").train(), data)
    with pytest.raises(InputError, match="token id 99, expected 0 to 63"):
        call(build("llama"), [{"input_ids": torch.full((4, 12), 99)}])
    with pytest.raises(InputError, match="model: got str, expected a torch module"):
        call("llama", data)


def test_a_window_that_does_not_fit() -> None:
    assert CONFIGS["llama"].num_hidden_layers == 3
    with pytest.raises(InputError, match="window_size: got 5, expected at most 3"):
        ns.sliding_window_diagnosis(build("llama"), [tokens(rows=4)], 5)
