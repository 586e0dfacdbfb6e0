"""95% intervals hold the truth in 92 to 98% of repetitions: the same estimator over all of the fixture's text.

All windows of the text are measured once, then samples of 50 are drawn from them again and again; each sample's
interval either holds the figure of the whole text or does not.
"""

from typing import Any

import numpy as np
import pytest

import noisescope
from noisescope.diagnosis.mapping import map_sensitivity
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.intervals import Estimate, ratio
from noisescope.measure.opening import open_data
from noisescope.points import Bench, Point
from noisescope.specs import Selection
from trained import NAMES, fixture

pytestmark = pytest.mark.usefixtures("one_thread")
WINDOW, SAMPLE = 32, 50


def counts(by_default: str) -> list[Any]:
    """Few windows of one fixture; with `-m slow` those of the other, and all of both."""
    some = [(name, 300, 60) for name in NAMES]
    every = [(name, 10_000, 300) for name in NAMES]
    return [
        pytest.param(*row, marks=[] if row == (by_default, 300, 60) else [pytest.mark.slow], id=f"{row[0]}-{row[1]}")
        for row in (*some, *every)
    ]


def text(name: str, windows: int) -> tuple[object, EvaluationSet]:
    model, tokenizer = fixture(name)
    return model, open_data(None, tokenizer, n_samples=windows, batch_size=25, max_length=WINDOW)


def coverage(top: np.ndarray, bottom: np.ndarray, *, positive: bool, repetitions: int) -> float:
    truth = top.sum() / bottom.sum()
    rng = np.random.default_rng(0)
    drawn = (
        rng.choice(len(top), SAMPLE) for _ in range(repetitions)
    )  # with replacement: the text is a large one's sample
    found = [ratio(top[some], bottom[some], positive=positive) for some in drawn]
    return float(np.mean([estimate.low <= truth <= estimate.high for estimate in found]))


def within(found: list[float], repetitions: int) -> None:
    """Each figure's coverage within what 92 to 98% leaves to chance, and their mean within 92 to 98% itself."""
    chance = 3 * np.sqrt(0.95 * 0.05 / repetitions)
    assert min(found) > 0.92 - chance
    assert 0.92 <= np.mean(found) <= 0.98


@pytest.mark.parametrize(("name", "windows", "repetitions"), counts("llama"))
def test_of_kl_and_degradation(name: str, windows: int, repetitions: int) -> None:
    model, data = text(name, windows)
    bench = Bench(model, data, resume=False)
    clean, kl, loss = bench.clean, [], []
    for layers, scale in (((3,), 0.05), ((0, 1, 2), 0.1), (("head",), 0.05), ((7,), 0.02), ((5,), 0.3)):
        noisy = bench.run(Point(Selection(layers), noisescope.RelativeGaussian(scale))).comparison.noisy
        kl.append(coverage(noisy.kl_nats, noisy.tokens, positive=True, repetitions=repetitions))
        loss.append(coverage(clean.correct - noisy.correct, clean.correct, positive=False, repetitions=repetitions))
    within(kl, repetitions)
    within(loss, repetitions)


@pytest.mark.parametrize(("name", "windows", "repetitions"), counts("gpt2"))
def test_of_the_map(name: str, windows: int, repetitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums per sequence are taken where the map makes its estimates of them."""
    model, data = text(name, windows)
    sums: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(top: np.ndarray, bottom: np.ndarray, *, positive: bool) -> Estimate:
        sums.append((top, bottom))
        return ratio(top, bottom, positive=positive)

    monkeypatch.setattr("noisescope.diagnosis.mapping.ratio", keep)
    cells = len(map_sensitivity(model, data).relative)
    by_sequence = [part for part in sums[:cells] if len(part[0]) == data.rows]
    assert len(by_sequence) >= cells - 1  # the positions of GPT-2 are looked up once for all rows of a batch
    within([coverage(*part, positive=True, repetitions=repetitions) for part in by_sequence], repetitions)


def test_intervals_that_take_tokens_as_independent_would_be_caught() -> None:
    """The mutant: a standard error from tokens, of which each sequence has thirty that go together."""
    rng = np.random.default_rng(1)
    tops = rng.gamma(2.0, size=2000) * WINDOW
    truth, hits = tops.mean() / WINDOW, 0
    for _ in range(300):
        some = rng.choice(tops, SAMPLE)
        by_token = some.std() / WINDOW / np.sqrt(SAMPLE * WINDOW)
        hits += abs(some.mean() / WINDOW - truth) < 1.96 * by_token
    with pytest.raises(AssertionError):
        within([hits / 300], 300)
