"""Points on a bench: what a trial measures, resumed or whole, alone or among others."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import noisescope
from noisescope.errors import DoseVanished, NonFinite, NothingMatched
from noisescope.keys import Key
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.opening import open_data
from noisescope.noise import Measured
from noisescope.points import Bench, Point
from noisescope.specs import Selection
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")
NOISE = noisescope.RelativeGaussian(0.1)


@pytest.fixture(scope="module")
def llama() -> tuple[torch.nn.Module, EvaluationSet]:
    model, tokenizer = fixture("llama")
    return model, open_data(None, tokenizer, n_samples=10, batch_size=4, max_length=16)


def test_a_trial_is_what_inject_does_by_hand(llama: tuple) -> None:
    """KL, flips and accuracy from whole forward passes with the public context manager, in float64."""
    model, data = llama
    point = Point(Selection((5,), ("linear", "softmax")), NOISE, seed=3)
    found = Bench(model, data).run(point).comparison
    kl = flips = right = tokens = 0.0
    with torch.no_grad(), noisescope.inject(model, NOISE, layers=5, operators=["linear", "softmax"], seed=3):
        noisy = [model(**batch.inputs()).logits[:, :-1].double().log_softmax(-1) for batch in data]
    in_steps = noisescope.inject(model, noisescope.RelativeGaussian(0.0), operators="softmax")
    with torch.no_grad(), in_steps:
        clean = [model(**batch.inputs()).logits[:, :-1].double().log_softmax(-1) for batch in data]
    for batch, p, q in zip(data, clean, noisy, strict=True):
        kl += float((p.exp() * (p - q)).sum())
        flips += int((p.argmax(-1) != q.argmax(-1)).sum())
        right += int((q.argmax(-1) == batch.input_ids[:, 1:]).sum())
        tokens += batch.predicted.sum().item()
    assert found.kl.value == pytest.approx(kl / tokens, rel=1e-3)  # other layers' attention is fused there
    assert found.flip_rate.value == pytest.approx(flips / tokens)
    assert found.noisy.accuracy.value == pytest.approx(right / tokens)


@pytest.mark.parametrize("layers", [(0,), (3, 4), (7,), ("head",), ("final_norm",), ("embed",), None])
def test_resumed_and_whole_trials_are_the_same_bits(llama: tuple, layers: tuple | None) -> None:
    model, data = llama
    point = Point(Selection(layers), NOISE)
    whole, resumed = (Bench(model, data, resume=resume).run(point) for resume in (False, True))
    for part in ("kl_nats", "flips", "correct", "nll_nats"):
        assert np.array_equal(getattr(whole.comparison.noisy, part), getattr(resumed.comparison.noisy, part))
    assert whole.finding.cost == 1.0
    first = {None: 0, ("embed",): 0, ("head",): 8, ("final_norm",): 8}.get(layers, layers and layers[0])
    assert resumed.finding.cost == pytest.approx((8 - first) / 8)


def test_trials_are_independent_and_add_up(llama: tuple) -> None:
    model, data = llama
    bench = Bench(model, data)
    three = bench.run(Point(Selection((2,)), NOISE, trials=3))
    one = bench.run(Point(Selection((2,)), NOISE))
    assert three.finding.cost == pytest.approx(3 * one.finding.cost)
    assert three.finding.injections == 3 * one.finding.injections
    assert three.comparison.kl.value != one.comparison.kl.value
    assert three.comparison.kl.value == pytest.approx(one.comparison.kl.value, rel=0.3)
    assert three.comparison.kl.n == one.comparison.kl.n == 10


def test_trials_end_when_draws_agree(llama: tuple) -> None:
    model, data = llama
    bench = Bench(model, data)
    loose = bench.run(Point(Selection((7,)), NOISE, trials=5, tolerance=10.0))
    tight = bench.run(Point(Selection((7,)), NOISE, trials=5, tolerance=1e-9))
    assert loose.finding.trials == 2, "one draw cannot agree"
    assert tight.finding.trials == 5
    silent = bench.run(Point(Selection((7,)), noisescope.RelativeGaussian(0.0), trials=5))
    assert silent.finding.trials == 1, "where there is no noise, there is one draw"


def test_other_draws_agree_as_well_as_was_said(llama: tuple) -> None:
    """Other seeds of as many draws: 1.96 standard deviations of them are the tolerance that was asked for."""
    model, data = llama
    bench, asked = Bench(model, data), Point(Selection((6,)), NOISE, trials=50, tolerance=0.04)
    trials = int(np.median([bench.run(replace(asked, seed=seed)).finding.trials for seed in range(5)]))
    assert 2 < trials < 50
    others = [replace(asked, seed=seed, trials=trials, tolerance=0.0) for seed in range(5, 22)]
    found = [bench.run(point).comparison.kl.value for point in others]
    assert 1.96 * np.std(found, ddof=1) / np.mean(found) == pytest.approx(0.04, rel=0.4)


def test_draws_are_common_to_all_scales(llama: tuple) -> None:
    """Twice a small scale gives four times the KL, almost exactly: the same numbers were drawn."""
    model, data = llama
    bench = Bench(model, data)
    results = [bench.run(Point(Selection((2,)), NOISE, scale=scale)) for scale in (1e-3, 2e-3)]
    small, double = (result.comparison.kl.value for result in results)
    assert double == pytest.approx(4 * small, rel=5e-3)


def test_no_noise_no_difference(llama: tuple) -> None:
    model, data = llama
    result = Bench(model, data).run(Point(Selection((4,)), noisescope.RelativeGaussian(0.0)))
    assert result.comparison.kl.value == 0.0
    assert result.comparison.degradation.value == 0.0
    assert result.comparison.flip_rate.value == 0.0


def test_dose_and_signal_to_noise_are_as_realised(llama: tuple) -> None:
    model, data = llama
    result = Bench(model, data).run(Point(Selection((4,), ("linear",)), NOISE))
    assert result.finding.dose == pytest.approx(0.1, rel=0.02)
    assert result.finding.snr_db == pytest.approx(20 * np.log10(1 / (0.1 * np.sqrt(2 / np.pi))), abs=0.3)
    assert result.finding.injections == 7 * len(data.batches)


def test_a_model_that_cannot_be_resumed_is_run_whole() -> None:
    """A block that keeps something for the next one beside what it returns."""
    model, tokenizer = fixture("llama")
    data = open_data(None, tokenizer, n_samples=4, batch_size=4, max_length=12)
    layers = model.model.layers
    kept = {}
    layers[1].register_forward_hook(lambda module, args, out: kept.update(hidden=out.clone()))

    def skip_connection(module: torch.nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
        return out + 0.1 * kept.pop("hidden", torch.zeros(()))

    layers[5].mlp.register_forward_hook(skip_connection)
    bench = Bench(model, data)
    result = bench.run(Point(Selection((6,)), NOISE))
    assert result.finding.cost in (1.0, pytest.approx(2 / 8))
    whole = Bench(model, data, resume=False).run(Point(Selection((6,)), NOISE))
    assert result.comparison.kl.value == whole.comparison.kl.value


def test_a_clean_model_that_is_not_finite_is_named() -> None:
    model, tokenizer = fixture("llama")
    data = open_data(None, tokenizer, n_samples=4, batch_size=4, max_length=12)
    model.model.layers[3].mlp.up_proj.weight.data[7, 2] = float("nan")
    named = r"the model gives non-finite logits; .* at model\.layers\.3\.mlp\.up_proj\.linear\.0"
    with pytest.raises(NonFinite, match=named):
        _ = Bench(model, data).clean


def test_noise_that_breaks_the_output_is_a_failed_point(llama: tuple) -> None:
    model, data = llama
    bench = Bench(model, data)
    point = Point(Selection((2,), ("rms_norm",)), noisescope.RelativeGaussian(1e38))
    result = bench.run(point)
    assert result.comparison is None
    assert "first value that is not finite is at model.layers.2." in result.finding.failure
    assert bench.run(Point(Selection((2,)), NOISE)).comparison is not None


def test_a_selection_that_matches_nothing(llama: tuple) -> None:
    model, data = llama
    with pytest.raises(NothingMatched, match="gelu"):
        Bench(model, data).run(Point(Selection(operators=("gelu",)), NOISE))


@dataclass(frozen=True)
class InBatches:
    """A rare fault: it strikes in some batches only."""

    name: ClassVar[str] = "rare"
    sparse: ClassVar[bool] = True
    scale: float
    batches: tuple[int, ...]

    def disturb_(self, value: torch.Tensor, scale: float, key: Key) -> None:
        if key.step in self.batches:
            value.view(-1)[0] += 1.0

    def dose(self, seen: Measured) -> float:
        return seen.changed / seen.elements


def test_a_rare_fault_may_miss_a_batch_but_not_all(llama: tuple) -> None:
    model, data = llama
    bench = Bench(model, data)
    result = bench.run(Point(Selection((7,), ("linear",)), InBatches(1e-4, (1,))))
    assert 0 < result.finding.dose < 1e-3
    assert [value > 0 for value in result.comparison.noisy.kl_nats] == [at == 4 for at in range(10)]
    with pytest.raises(
        DoseVanished, match=r"layers 7, operators linear: rare at scale 0.0001 changed none of \d+ values"
    ):
        bench.run(Point(Selection((7,), ("linear",)), InBatches(1e-4, ())))


def test_the_model_is_left_as_it_was(llama: tuple) -> None:
    model, data = llama
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Bench(model, data).run(Point(Selection((1,)), NOISE))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
