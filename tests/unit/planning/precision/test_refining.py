"""A plan after its steps: within its bits, better where it was run, and the programme's own where nothing helps."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import trained
from noisescope.diagnosis.accepting import data_for
from noisescope.planning.precision import refining
from noisescope.planning.precision.choosing import Candidates, Chosen
from noisescope.planning.precision.refining import refine
from noisescope.points import Bench
from noisescope.quantising import map_formats
from noisescope.quantising.checking import CheckedFormats, measure

FORMATS = ("mxfp4", "nvfp4", "mxfp6", "int8")


@cache
def known() -> tuple[Candidates, dict[str, Bench]]:
    model, tokenizer = trained.fixture("gpt2")
    mapped = data_for(model, None, tokenizer, n_samples=96, batch_size=32, max_length=16, seed=1)
    benches = {
        name: Bench(model, data_for(model, None, tokenizer, n_samples=32, batch_size=16, max_length=16, seed=seed))
        for seed, name in ((2, "sloped"), (3, "stepped"))
    }
    return Candidates(CheckedFormats(map_formats(model, mapped, FORMATS), ()), FORMATS), benches


def unlucky(candidates: Candidates, bits: float) -> Chosen:
    """A choice that is far from the best: formats at random, within the bits."""
    draw = np.random.default_rng(0)
    while True:
        names = {group: str(draw.choice(["mxfp4", "nvfp4"])) for group in candidates.groups}
        found = candidates.given({path: names[group] for group, paths in candidates.groups.items() for path in paths})
        if found.bits <= bits:
            return found


@cache
def refined():
    candidates, benches = known()
    return refine(candidates, unlucky(candidates, 4.5), 4.5, **benches)


def test_steps_make_it_better_within_the_bits() -> None:
    bench, found = known()[1]["stepped"], refined()
    assert found.chosen.bits <= 4.5 * (1 + 1e-9)
    assert measure(bench, found.chosen.formats).value < 0.9 * found.start.value
    taken = [step.measured.value for step in found.steps if step.taken]
    assert taken == sorted(taken, reverse=True)
    assert measure(bench, found.chosen.formats) == next(step for step in reversed(found.steps) if step.taken).measured


def test_every_step_is_judged_by_its_run() -> None:
    kl = refined().start.value
    for step in refined().steps:
        assert step.measured.value < kl or not step.taken
        kl = step.measured.value if step.taken else kl
    assert refined().cost <= 4 * refining.PASSES


def test_a_step_that_is_not_taken_halves_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, benches = known()
    monkeypatch.setattr(refining, "_better", lambda _: False)
    start = unlucky(candidates, 4.5)
    found = refine(candidates, start, 4.5, **benches)
    changed = [step.changed for step in found.steps]
    assert found.chosen is start
    assert not any(step.taken for step in found.steps)
    assert all(later <= earlier // 2 for earlier, later in pairwise(changed))
    assert found.cost == 4  # one pass of gradients serves them all


def test_where_nothing_is_foretold_to_help_nothing_is_run() -> None:
    candidates, benches = known()
    found = refine(candidates, candidates.best(16), 16, **benches)
    assert found.steps == ()
    assert found.chosen.formats == candidates.best(16).formats
