"""Estimates from sketches and samples against whole values: they cover them at the stated rate."""

from dataclasses import replace

import pytest
import torch
from trials import IDS

import noisescope as ns
from noisescope.comparing.estimating import METRICS, Figure, Side, estimate, exact
from noisescope.measure.metrics import compute_correlation, compute_cosine, compute_mae, compute_max_error, compute_sqnr
from noisescope.traces import Trace
from noisescope.traces.sketch import Sketcher
from noisescope.traces.tally import SiteTally
from trained import fixture


def sides(a: Trace, b: Trace, number: int) -> tuple[Side, Side]:
    return tuple(Side(t.sites[number], t.sketch[number], t.sample[number]) for t in (a, b))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Trace, Trace]]:
    """Suspects of several kinds, whole."""
    found = []
    for name, what in [("llama", "noise:0.05@1.linear"), ("gpt2", "saturation:0.3@2.linear"), ("llama", "tf32")]:
        model, _ = fixture(name)
        a = ns.trace(model, IDS, full=True, floor=False)
        found.append((a, ns.trace(model, IDS, full=True, floor=False, emulate=what)))
    return found


def drawn_again(trace: Trace, number: int, seed: int) -> Side:
    """The site under another seed of signs and sample."""
    tally = SiteTally(seed)
    for value in trace.full[number]():
        tally.fold(value, Sketcher(seed, torch.device("cpu")))
    record = tally.read()
    return Side(replace(trace.sites[number], bits=record.bits), record.sketch, record.sample)


def test_intervals_cover_the_exact_values_at_their_rate(pairs: list[tuple[Trace, Trace]]) -> None:
    """95%, where each draw is made anew; over 40 draws of 15 sites that is at least 93%."""
    covered: dict[str, list[bool]] = {metric: [] for metric in METRICS}
    for a, b in pairs:
        for number in range(30, len(a.sites), 16):
            truth = exact(*sides(a, b, number), a.full[number](), b.full[number]())
            for seed in range(40):
                guess = estimate(drawn_again(a, number, seed), drawn_again(b, number, seed))
                for metric in METRICS:
                    interval: Figure = getattr(guess, metric)
                    value = getattr(truth, metric).value
                    slack = 1e-9 * max(abs(value), 1.0)
                    covered[metric].append(interval.low - slack <= value <= interval.high + slack)
    rates = {metric: sum(hits) / len(hits) for metric, hits in covered.items()}
    assert min(map(len, covered.values())) >= 400
    assert min(rates.values()) >= 0.93, rates


def test_exact_metrics_are_those_of_the_metrics_page(pairs: list[tuple[Trace, Trace]]) -> None:
    a, b = pairs[0]
    number = len(a.sites) - 1
    x, y = (torch.cat([v.reshape(-1) for v in t.full[number]()]) for t in (a, b))
    found = exact(*sides(a, b, number), a.full[number](), b.full[number]())
    assert found.mae.value == pytest.approx(compute_mae(x, y))
    assert found.max_error.value == pytest.approx(compute_max_error(x, y))
    assert found.sqnr_db.value == pytest.approx(compute_sqnr(x, y))
    assert found.cosine.value == pytest.approx(compute_cosine(x, y), abs=1e-9)
    assert found.pearson.value == pytest.approx(compute_correlation(x, y), abs=1e-6)
    size = (y - x).double().abs()
    large = x.abs() >= 0.1 * a.sample[number].double().abs().median()
    assert found.mape.value == pytest.approx(float((size[large] / x[large].double().abs()).mean()))
    assert found.within_05.value == pytest.approx(float((size <= 0.005 * x.double().abs()).double().mean()))


def test_equal_bits_have_no_error_and_no_interval(pairs: list[tuple[Trace, Trace]]) -> None:
    a, _ = pairs[0]
    found = estimate(*sides(a, a, 3))
    assert found.relative_error == Figure(0.0, 0.0, 0.0)
    assert (found.cosine.value, found.within_01.value) == (1.0, 1.0)
