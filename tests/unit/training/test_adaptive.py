"""Adaptive noise: factors by the documented rule, and contributions that are equal when they are measured."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

import noisescope as ns
import trained
from noisescope.errors import InputError, NothingMatched
from noisescope.planning.degradation import degradation_of
from noisescope.report.figures import Interval

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=trained.NAMES)
def diagnosed(request):
    """A model, its tokenizer and its report."""
    model, tokenizer = trained.fixture(request.param)
    return model, tokenizer, ns.diagnose(model, tokenizer=tokenizer, n_samples=50)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    model, tokenizer = trained.fixture("llama")
    return ns.diagnose(model, tokenizer=tokenizer, n_samples=8, max_length=12)


def with_losses(report, losses):
    """The report with other degradations: windows of one layer each."""
    sections = deepcopy(dict(report.sections))
    template = next(iter(sections["layer_analysis"].values()))
    sections["layer_analysis"] = {
        f"L{layer}": template | {"start_layer": layer, "end_layer": layer, "degradation": loss}
        for layer, loss in enumerate(losses)
    }
    sections["metrics"] = sections["metrics"] | {"clean": sections["metrics"]["clean"] | {"conclusive": True}}
    return ns.Report(sections)


LOSSES = (0.3, 0.16, 0.15, 0.10, 0.05, 0.049, 0.0, -0.02)


def test_the_documented_rule(report):
    adaptive = ns.AdaptiveNoise.from_report(with_losses(report, LOSSES), layers=range(8))
    assert [adaptive.factors[layer] for layer in range(8)] == [0.5, 0.5, 1, 1, 1, 2, 2, 2]
    assert [adaptive.groups[layer] for layer in (0, 2, 7)] == ["protect", "normal", "aggressive"]
    assert adaptive.scales(0.1)[0] == 0.05
    assert adaptive.layers == tuple(range(8))


def test_thresholds_and_factors_are_yours_to_set(report):
    adaptive = ns.AdaptiveNoise.from_report(
        with_losses(report, LOSSES), protect_above=0.2, aggressive_below=0.02, factors=(0, 1, 3), layers=range(8)
    )
    assert [adaptive.factors[layer] for layer in range(8)] == [0, 1, 1, 1, 1, 1, 3, 3]


def test_a_block_has_the_mean_of_its_windows_and_the_head_its_own_row(report):
    adaptive = ns.AdaptiveNoise.from_report(report)
    assert {layer: loss for layer, loss in adaptive.minded.items() if isinstance(layer, int)} == degradation_of(report)
    assert adaptive.minded["head"] == report.sections["operator_analysis"]["head"]["degradation"]
    assert list(adaptive.layers)[-1] == "head"


def test_it_prints_as_a_table(report):
    shown = str(ns.AdaptiveNoise.from_report(with_losses(report, LOSSES), layers=range(8))).splitlines()
    assert shown[0].split() == ["layer", "accuracy", "lost", "group", "factor"]
    assert shown[1].split() == ["L0", "30.0", "%", "protect", "0.5"]


def test_equal_contributions_print_with_what_is_known_of_them(report):
    kl = report.sections["metrics"]["layers"]["1"]["kl"]
    shown = str(ns.AdaptiveNoise.equalize(report)).splitlines()
    assert shown[0].split() == ["layer", "KL,", "nats/token", "group", "factor"]
    assert shown[2].split()[:4] == ["L1", *str(Interval(kl["value"], kl["low"], kl["high"])).split()]
    assert "0.5" in str(ns.AdaptiveNoise.equalized({0: 0.5, 1: 0.25})), "figures without an interval have none"


def test_a_report_about_some_operators_is_equal_for_them():
    model, tokenizer = trained.fixture("llama")
    some = ns.diagnose(
        model, tokenizer=tokenizer, n_samples=4, max_length=8, spec=ns.DiagnosisSpec(operators=("softmax",))
    )
    assert ns.AdaptiveNoise.equalize(some).operators == ("softmax",)
    with pytest.raises(InputError, match="equal for softmax, the noise goes to all operators"):
        ns.OperatorNoise(0.1, adaptive=ns.AdaptiveNoise.equalize(some))


def test_a_head_that_breaks_is_protected(report):
    sections = deepcopy(dict(with_losses(report, LOSSES).sections))
    sections["operator_analysis"] |= {"head": {"failed": "not finite"}, "embed": {"failed": "oom", "non_finite": False}}
    adaptive = ns.AdaptiveNoise.from_report(ns.Report(sections))
    assert adaptive.groups["head"] == "protect"
    assert "embed" not in adaptive.factors


def test_it_reads_the_report_of_a_directory(report, tmp_path):
    report.save(tmp_path / "out")
    assert ns.AdaptiveNoise.equalize(tmp_path / "out") == ns.AdaptiveNoise.equalize(report)


# --- equal contributions ------------------------------------------------------------------------------------------


def test_equal_contributions_by_the_formula(report):
    kl = {0: 4.0, 1: 1.0, 2: 0.25}
    adaptive = ns.AdaptiveNoise.equalized(kl)
    contributions = [kl[layer] * factor**2 for layer, factor in adaptive.factors.items()]
    assert contributions == pytest.approx([1.75] * 3)
    assert sum(contributions) == pytest.approx(sum(kl.values())), "the total is fixed"
    assert adaptive.factors[1] == pytest.approx(sqrt(1.75))


@pytest.mark.parametrize("scale", [0.02, 0.1])
def test_contributions_are_equal_when_they_are_measured(diagnosed, scale):
    """On other text, with other draws than the report's: none further than 15% from any other."""
    model, tokenizer, report = diagnosed
    adaptive = ns.AdaptiveNoise.equalize(report)
    data = ns.open_data(None, tokenizer, n_samples=64, max_length=32, seed=5)
    found = ns.measure_contributions(model, data, ns.OperatorNoise(scale, adaptive=adaptive, seed=11), trials=2)
    assert list(found) == list(range(8))
    values = [kl.value for kl in found.values()]
    assert max(values) <= 1.15 * min(values)
    plain = ns.measure_contributions(model, data, ns.OperatorNoise(scale, seed=11), trials=2)
    before = [kl.value for kl in plain.values()]
    assert max(before) > 1.3 * min(before), "with one scale they are not"
    assert sum(values) == pytest.approx(sum(before), rel=0.1), "the total is what it was"


def test_layers_that_a_report_hardly_knows_are_named(report, caplog):
    """A few massive activations decide what early layers of a real model cost: then fifty rows know them badly."""
    unsure = deepcopy(dict(report.sections))
    for layer in ("2", "3", "4", "6"):
        kl = unsure["metrics"]["layers"][layer]["kl"]
        kl |= {"low": kl["value"] / (2 + int(layer)), "high": kl["value"] * (2 + int(layer))}
    adaptive = ns.AdaptiveNoise.equalize(ns.Report(unsure))
    assert adaptive.unsure == pytest.approx({2: 4, 3: 5, 4: 6, 6: 8})
    [said] = [record.getMessage() for record in caplog.records if record.name == "noisescope.training"]
    assert "the KL of L2 to L4, L6 to a factor of 8; equalize_contributions measures" in said


def test_what_a_report_knows_well_is_not_warned_of(diagnosed, caplog):
    *_, report = diagnosed
    assert not ns.AdaptiveNoise.equalize(report).unsure
    assert not ns.AdaptiveNoise.equalize(report, operators="linear").unsure
    assert not caplog.records


def test_they_are_made_equal_by_measuring(caplog):
    """Without any report, for one operator, at a scale where the second order is far away."""
    model, tokenizer = trained.fixture("llama")
    data = ns.open_data(None, tokenizer, n_samples=64, max_length=32, seed=2, batch_size=64)
    noise = ns.OperatorNoise(0.2, operators="linear", layers=[2, 5, "head"])
    before = [kl.value for kl in ns.measure_contributions(model, data, noise, trials=1).values()]
    steps = Counter()
    equal = ns.equalize_contributions(
        model, data, noise, trials=2, progress=lambda stage, total: lambda: steps.update([(stage, total)])
    )
    after = [kl.value for kl in ns.measure_contributions(model, data, replace(equal, seed=9), trials=2).values()]
    assert max(before) > 2 * min(before)
    assert max(after) <= 1.15 * min(after)
    shown = ns.measure_contributions(model, data, replace(equal, seed=1), trials=2)
    assert equal.adaptive.minded == {layer: kl.value for layer, kl in shown.items()}, (
        "with other draws than the noise's"
    )
    assert equal.adaptive.intervals == {layer: (kl.low, kl.high) for layer, kl in shown.items()}
    assert list(steps) == [("contributions", 3)]
    assert steps.total() <= 3 * 6
    assert not caplog.records


def test_what_one_draw_made_equal_is_judged_by_another(caplog):
    model, tokenizer = trained.fixture("llama")
    data = ns.open_data(None, tokenizer, n_samples=2, max_length=8, seed=2)
    noise = ns.OperatorNoise(0.05, operators="linear", layers=[0, 2, 5])
    equal = ns.equalize_contributions(model, data, noise, trials=1)
    shown = equal.adaptive.minded.values()
    assert max(shown) > 1.15 * min(shown)
    assert f"the largest is {max(shown) / min(shown):.3g} times the smallest" in caplog.text


@pytest.mark.parametrize("noise", [ns.BitFlip(1e-2, field="mantissa"), ns.RelativeGaussian(0.5)])
def test_they_are_made_equal_whatever_power_they_grow_with(noise):
    """Bits that flip cost what their share is, not its square; and a large noise less than its square."""
    model, tokenizer = trained.fixture("llama")
    data = ns.open_data(None, tokenizer, n_samples=64, max_length=32, seed=2, batch_size=64)
    asked = ns.OperatorNoise(noise, operators="linear", layers=[0, 2, 5])
    before = [kl.value for kl in ns.measure_contributions(model, data, asked, trials=2).values()]
    equal = ns.equalize_contributions(model, data, asked, trials=2)
    after = [kl.value for kl in ns.measure_contributions(model, data, equal, trials=2).values()]
    assert max(before) > 2 * min(before)
    assert max(after) <= 1.05 * min(after)
    assert sum(after) == pytest.approx(sum(before), rel=0.05)
    assert equal.adaptive.error_type == noise.name


def test_layers_may_be_called_as_files_call_them():
    made = ns.AdaptiveNoise.from_profile({"0": 0.2, "L1-2": 0.01, np.int64(3): np.float32(0.1), "head": 0.3})
    assert made.factors == {0: 0.5, 1: 2.0, 2: 2.0, 3: 1.0, "head": 0.5}
    assert made.groups[2] == "aggressive"
    made.check(trained.fixture("llama")[0], layers=8)


# --- what is refused ----------------------------------------------------------------------------------------------


def other_model(report):
    return ns.NoisyTraining(
        trained.fixture("gpt2")[0], ns.OperatorNoise(0.1, adaptive=ns.AdaptiveNoise.equalize(report))
    )


REFUSED = {
    "another model": (
        other_model,
        r"report: is of another model \(\"LlamaForCausalLM\", 8 layers, 459840 parameters; this one has 8",
    ),
    "nothing of it": (
        lambda report: ns.AdaptiveNoise.equalize(report, layers=[9]),
        "layers: the report tells nothing of L9; it has embed L0",
    ),
    "no such cells": (
        lambda report: ns.AdaptiveNoise.equalize(report, operators="gelu"),
        "operators: the map of the report has no cell of gelu",
    ),
    "other operators": (
        lambda report: ns.OperatorNoise(
            0.1, adaptive=ns.AdaptiveNoise.equalize(report, operators="linear"), operators="softmax"
        ),
        "adaptive: contributions are equal for linear, the noise goes to softmax; make it with the same operators",
    ),
    "norm weights": (
        lambda report: ns.NormWeightNoise(0.1, adaptive=ns.AdaptiveNoise.equalize(report)),
        "adaptive: contributions are made equal for noise in what operators compute, not in weights",
    ),
    "a layer without a factor": (
        lambda report: ns.OperatorNoise(0.1, adaptive=ns.AdaptiveNoise({0: 1.0}), layers=[1]),
        "layers: 1 has no factor in adaptive, which has 0",
    ),
    "thresholds": (
        lambda report: ns.AdaptiveNoise.from_report(report, protect_above=0.01),
        "protect_above: got 0.01, expected at least aggressive_below, 0.05",
    ),
    "no report": (lambda report: ns.AdaptiveNoise.from_report({}), "report: got dict, expected a report of `diagnose`"),
    "no file": (lambda report: ns.AdaptiveNoise.from_report("nowhere"), "nowhere: cannot be read"),
    "a factor": (lambda report: ns.AdaptiveNoise({0: -1.0}), r"factors\[0\]: got -1.0"),
    "no factors": (lambda report: ns.AdaptiveNoise({}), "factors: got none"),
    "a layer twice": (lambda report: ns.AdaptiveNoise({"0-1": 1.0, 1: 2.0}), "factors: L1 is there twice"),
    "a threshold in words": (
        lambda report: ns.AdaptiveNoise.from_profile({0: 0.1}, protect_above="much"),
        'protect_above: got "much", expected a share of accuracy lost',
    ),
    "one factor": (
        lambda report: ns.AdaptiveNoise.from_profile({0: 0.1}, factors=2),
        "factors: got 2, expected three",
    ),
    "another kind of noise": (
        lambda report: ns.OperatorNoise(ns.BitFlip(1e-4), adaptive=ns.AdaptiveNoise.equalize(report)),
        "adaptive: contributions are equal for relative_gaussian, the noise is bit_flip; diagnose with error_type=bit",
    ),
    "operators that differ": (
        lambda report: ns.OperatorNoise(
            0.1, adaptive=ns.AdaptiveNoise.equalize(report), operator_scales={"linear": 2.0}
        ),
        "adaptive: contributions are equal where all operators have one scale; leave out operator_scales",
    ),
    "a multiplier of an operator without noise": (
        lambda report: ns.OperatorNoise(0.1, operators="softmax", operator_scales={"linear": 2.0}),
        r'operator_scales: "linear" is not one of the operators that get noise \(softmax\); add it to operators',
    ),
    "what is no noise": (lambda report: contributions(0.1), "noise: got 0.1, expected OperatorNoise"),
    "gradients alone": (
        lambda report: contributions(ns.OperatorNoise(0.1, phases="backward")),
        "noise: is in gradients alone, which cost no KL",
    ),
    "no scale": (lambda report: contributions(ns.OperatorNoise(0.0)), "scale: got 0, expected a number > 0"),
    "no trials": (lambda report: contributions(ns.OperatorNoise(0.1), trials=0), "trials: got 0, expected a whole"),
    "no such layer": (
        lambda report: contributions(ns.OperatorNoise(0.1, layers=[9])),
        "layers: 9 is out of range, the model has 0 to 7",
    ),
    "no KL": (lambda report: ns.AdaptiveNoise.equalized({0: 0.0}), "L0: got a KL of 0, expected a number > 0"),
    "not degraded": (
        lambda report: ns.AdaptiveNoise.from_report(inconclusive(report)),
        "report: has no degradation of every layer",
    ),
}


def contributions(noise, **options):
    model, tokenizer = trained.fixture("llama")
    data = ns.open_data(None, tokenizer, n_samples=2, max_length=8)
    return ns.measure_contributions(model, data, noise, **options)


def inconclusive(report):
    sections = deepcopy(dict(report.sections))
    sections["metrics"]["clean"]["conclusive"] = False
    return ns.Report(sections)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_one_line(report, case):
    ask, says = REFUSED[case]
    with pytest.raises((InputError, NothingMatched), match=says) as refused:
        ask(report)
    assert "\n" not in str(refused.value)
