"""P10: a point's result does not depend on other points, their order, sharding, or whether its trials are resumed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor, nn

import noisescope as ns
from families import DECODERS, build, tokens
from noisescope.injection import Injection
from noisescope.keys import Key
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.comparing import Outcome
from noisescope.noise import Measured
from noisescope.noise.drawing import Draw
from noisescope.points import Bench, Point, Result
from noisescope.specs import Selection
from trained import tokenizer

GAUSSIAN = ns.RelativeGaussian(0.1)
POINTS = (
    Point(Selection((5,)), GAUSSIAN),
    Point(Selection((5,)), GAUSSIAN, scale=0.2),
    Point(Selection((5,)), GAUSSIAN, seed=1),
    Point(Selection((5,), ("linear",)), GAUSSIAN, trials=2),
    Point(Selection((2, 3)), ns.Uniform(0.1)),
    Point(Selection(("head",)), GAUSSIAN),
    Point(Selection(("embed",)), ns.BitFlip(1e-3, field="mantissa")),
    Point(Selection(operators=("softmax", "rms_norm")), GAUSSIAN),
    Point(Selection((1,), ("rms_norm",)), ns.RelativeGaussian(1e38)),
    Point(Selection((7,)), GAUSSIAN, trials=3, tolerance=10.0),
)
"""among them the same place at two scales and two seeds, one that fails, and one that stops early"""
FEW = (*POINTS[:4], POINTS[5], *POINTS[8:])


@cache
def data() -> EvaluationSet:
    return ns.open_data(None, tokenizer("llama"), n_samples=8, batch_size=4, max_length=12)


def bits(result: Result) -> dict[str, Any]:
    """All that a result says, floats as bytes; what it cost is no part of it."""
    found: dict[str, Any] = {"injections": result.finding.injections, "failure": result.finding.failure}
    found |= {name: np.float64(getattr(result.finding, name)).tobytes() for name in ("dose", "snr_db")}
    if result.comparison is not None:
        for side in ("clean", "noisy"):
            outcome: Outcome = getattr(result.comparison, side)
            found |= {
                f"{side} {each.name}": np.asarray(getattr(outcome, each.name)).tobytes() for each in fields(outcome)
            }
    return found


def run(bench: Bench, points: Sequence[Point], order: Sequence[int]) -> dict[int, dict[str, Any]]:
    return {at: bits(bench.run(points[at])) for at in order}


def shuffled(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def check_independent(model: nn.Module, data: EvaluationSet, points: Sequence[Point], *, orders: int = 2) -> None:
    """Alone on a bench of its own, or among others however ordered and shared out, a point gives the same bits."""
    every = range(len(points))
    alone = {at: bits(Bench(model, data).run(points[at])) for at in every}
    assert len({str(found) for found in alone.values()}) == len(points), "the points are to differ"
    for seed in range(orders):
        assert run(Bench(model, data), points, shuffled(len(points), seed)) == alone
    shards = [run(Bench(model, data), points, list(every)[part::2]) for part in (1, 0)]
    assert {**shards[0], **shards[1]} == alone
    assert run(Bench(model, data, resume=False, budget_bytes=0), points, every) == alone


def test_points_of_a_trained_model(llama):
    check_independent(llama, data(), FEW, orders=1)


@pytest.mark.slow
def test_points_in_many_orders(llama, gpt2):
    check_independent(llama, data(), POINTS, orders=30)
    check_independent(gpt2, data(), POINTS[:4], orders=30)


def tiny_points() -> list[Point]:
    again = Point(Selection((1,)), GAUSSIAN, seed=1)
    return [again, *(Point(Selection(layers), GAUSSIAN) for layers in [(1,), (2,), ("head",), (0, 2), None])]


def tiny_data() -> EvaluationSet:
    return ns.open_data([tokens(rows=4, seed=number) for number in range(2)], batch_size=4)


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_points_of_other_families(family):
    check_independent(build(family), tiny_data(), tiny_points())


@pytest.mark.slow
@pytest.mark.parametrize("family", DECODERS)
def test_points_of_every_family(family):
    check_independent(build(family), tiny_data(), tiny_points(), orders=5)


def test_a_point_does_not_change_what_the_bench_knows(llama):
    """The clean run is the same object before and after, to the bit."""
    bench = Bench(llama, data())
    before = {each.name: np.asarray(getattr(bench.clean, each.name)).tobytes() for each in fields(bench.clean)}
    for point in POINTS[:3]:
        bench.run(point)
    assert before == {each.name: np.asarray(getattr(bench.clean, each.name)).tobytes() for each in fields(bench.clean)}


def test_draws_of_a_trial_do_not_depend_on_how_many_follow(llama):
    """The first of three trials is the one that is drawn alone."""
    bench = Bench(llama, data())
    one, two, three = (bench.run(replace(POINTS[0], trials=n)).comparison.noisy.kl_nats for n in (1, 2, 3))
    assert not np.array_equal(one, two - one)
    assert not np.array_equal(two - one, three - two)
    again = bench.run(replace(POINTS[0], trials=3)).comparison.noisy.kl_nats
    assert np.array_equal(three, again)


# --- every draw is its own --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noted:
    """Gaussian noise that notes from where each draw starts."""

    name: ClassVar[str] = "relative_gaussian"
    sparse: ClassVar[bool] = False
    scale: float = 0.1
    starts: list[int] = field(default_factory=list, compare=False)

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        self.starts.append(key.digest)
        GAUSSIAN.disturb_(value, scale, key)

    def dose(self, seen: Measured) -> float:
        return GAUSSIAN.dose(seen)


def check_draws_apart(model: nn.Module, data: EvaluationSet) -> None:
    """No two sites, batches or trials of a point share a draw; another point that meets the same site does."""
    bench = Bench(model, data)
    wide, narrow = Noted(), Noted()
    bench.run(Point(Selection((1, 2)), wide, trials=2))
    bench.run(Point(Selection((2,)), narrow, trials=2))
    assert len(wide.starts) > 2 * 2 * len(data.batches)
    assert len(set(wide.starts)) == len(wide.starts), "two sites, batches or trials share a draw"
    assert set(narrow.starts) < set(wide.starts), "the draw of a site depends on what else is disturbed"


def test_every_site_batch_and_trial_has_a_draw_of_its_own():
    check_draws_apart(build("llama"), tiny_data())


# --- able to fail -----------------------------------------------------------------------------------------------


def noise_from_a_stream(monkeypatch):
    """One generator for all points, as in most tools."""
    stream = np.random.SFC64(0)
    monkeypatch.setattr(Draw, "__init__", lambda self, key, device: setattr(self, "_bits", stream))


def steps_counted_over_the_life_of_the_bench(monkeypatch):
    real, count = Bench._injecting, iter(range(10**6))
    monkeypatch.setattr(Bench, "_injecting", lambda self, point, trial, number: real(self, point, trial, next(count)))


def results_cached_by_layer(monkeypatch):
    real, known = Bench.run, {}

    def mutant(self, point):
        return known.setdefault(point.selection.layers, real(self, point))

    monkeypatch.setattr(Bench, "run", mutant)


def resumed_from_the_wrong_layer(monkeypatch):
    real = Bench._first_layer
    monkeypatch.setattr(Bench, "_first_layer", lambda self, selection: min(real(self, selection) + 1, self.layers))
    monkeypatch.setattr(Bench, "resumes", True)


@pytest.mark.parametrize(
    "mutant",
    [
        noise_from_a_stream,
        steps_counted_over_the_life_of_the_bench,
        results_cached_by_layer,
        resumed_from_the_wrong_layer,
    ],
)
def test_the_mutants_are_caught(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ns.NoisescopeError)):
        check_independent(build("llama"), tiny_data(), tiny_points(), orders=1)


def keys_without_the_site(monkeypatch):
    monkeypatch.setattr(Injection, "_key", lambda self, site, step: Key(self.seed, "", self.trial, step))


def keys_without_the_trial(monkeypatch):
    monkeypatch.setattr(Injection, "_key", lambda self, site, step: Key(self.seed, site.name, 0, step))


def keys_without_the_step(monkeypatch):
    monkeypatch.setattr(Injection, "_key", lambda self, site, step: Key(self.seed, site.name, self.trial))


def keys_by_what_is_selected(monkeypatch):
    def mutant(self, site, step):
        return Key(self.seed, f"{site.name} {self.selection.layers}", self.trial, step)

    monkeypatch.setattr(Injection, "_key", mutant)


@pytest.mark.parametrize(
    "mutant", [keys_without_the_site, keys_without_the_trial, keys_without_the_step, keys_by_what_is_selected]
)
def test_keys_that_lack_something_are_caught(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_draws_apart(build("llama"), tiny_data())
