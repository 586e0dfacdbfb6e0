"""The experiment of benchmarks/training runs, 20 steps an arm: every arm is there, noisy as it says, and evaluated."""

import importlib.util
import json
from pathlib import Path

import pytest

import trained

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("training_benchmark", ROOT / "benchmarks" / "training" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runs(benchmark, one_thread):
    """One seed of every arm, in this process; fewer rows, and two of the noises that it is evaluated with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "BATCH", 2)
        patch.setattr(benchmark, "NOISES", (0.1,))
        report = benchmark.ns.diagnose(trained.fixture("llama")[0], tokenizer=trained.tokenizer("llama"), n_samples=16)
        arms = benchmark.arms(report, 0)
        yield {arm: benchmark.run((arm, 0, 20, 4, report.to_json())) for arm in arms}


def test_every_arm_is_there_and_evaluated(runs):
    committed = json.loads((ROOT / "benchmarks" / "training" / "results.json").read_text())
    assert list(runs) == list(committed["summary"])
    assert {row["arm"] for row in committed["runs"]} == set(runs)
    assert len({row["seed"] for row in committed["runs"]}) >= 5
    for arm, row in runs.items():
        assert set(row["evaluated"]) == {"clean", "noise 0.1", "mxfp4"}, arm
        for figures in row["evaluated"].values():
            assert 1.5 < figures["nll_nats"] < 5


def test_arms_differ_by_their_noise_alone(runs):
    assert runs["clean"]["scale_and_dose"] == []
    for arm in ("forward", "backward", "both"):
        ((scale, dose),) = runs[arm]["scale_and_dose"]
        assert scale == 0.1
        assert dose == pytest.approx(0.1, rel=0.02)
    assert [scale for scale, _ in runs["aqn"]["scale_and_dose"]][::8] == [0.01, 0.0001]
    losses = [row["evaluated"]["clean"]["nll_nats"] for row in runs.values()]
    assert len(set(losses)) == len(losses)


def test_the_summary_is_a_paired_comparison(benchmark):
    """Against the formula of a paired t interval, by hand."""
    own, others = [1.0, 2.0, 4.0], [0.5, 1.0, 1.5]
    found = benchmark.paired(own, others)
    assert found["value"] == pytest.approx(4 / 3)
    half = 4.302653 * 1.0408330 / 3**0.5
    assert (found["low"], found["high"]) == pytest.approx((4 / 3 - half, 4 / 3 + half), rel=1e-5)
    assert found["could_see"] == pytest.approx((4.302653 + 1.060660) * 1.0408330 / 3**0.5, rel=1e-5)
    assert benchmark.paired([1.0], [2.0]) is None
