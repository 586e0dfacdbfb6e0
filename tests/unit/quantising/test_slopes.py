"""Slopes at a choice of formats against differences of the KL that is measured."""

from functools import cache

import pytest
import torch

import families
import trained
from noisescope.diagnosis.accepting import data_for
from noisescope.noise.formats import parse_format
from noisescope.points import Bench
from noisescope.quantising import find_weights, map_formats, quantised
from noisescope.quantising.checking import measure
from noisescope.quantising.slopes import slopes_at

FORMATS = ("mxfp4", "mxfp6")


@cache
def bench(name: str) -> Bench:
    model, tokenizer = trained.fixture(name)
    return Bench(model, data_for(model, None, tokenizer, n_samples=24, batch_size=8, max_length=12, seed=4))


def choice(here: Bench) -> dict[str, str]:
    return {path: FORMATS[number % 2] for number, path in enumerate(find_weights(here.layout))}


def moved(here: Bench, path: str, form: str, by: float) -> float:
    """The KL of the choice, if one weight is moved by so much of a format's error on top."""
    weight = find_weights(here.layout)[path]
    emulation = quantised(here.model, choice(here), layout=here.layout)
    with emulation:
        pass
    plain = emulation._round

    def off(which: str) -> torch.Tensor:
        if which != path:
            return plain(which)
        error = parse_format(form).round(weight.value, axis=weight.axis) - weight.value
        return (plain(which) + by * error).detach()

    emulation._round = off
    return here.compare(emulation).kl.value


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_slope_is_how_fast_the_kl_changes(name: str) -> None:
    here = bench(name)
    found = slopes_at(here, FORMATS, choice(here))
    paths = list(choice(here))
    size = max(abs(found.of([path], form)) for path in paths for form in FORMATS)
    for path in (paths[0], paths[3], paths[-1]):
        for form in FORMATS:
            slow = (moved(here, path, form, 0.05) - moved(here, path, form, -0.05)) / 0.1
            assert found.of([path], form) == pytest.approx(slow, rel=0.03, abs=0.003 * size)


def test_all_slopes_together_are_twice_the_kl() -> None:
    """As for any quadratic form; nothing of this is fitted."""
    here = bench("llama")
    found = slopes_at(here, FORMATS, choice(here))
    total = sum(found.of([path], form) for path, form in choice(here).items())
    assert total / 2 == pytest.approx(measure(here, choice(here)).value, rel=0.1)


def test_another_format_is_foretold_better_than_by_adding_up() -> None:
    """One group changes, where all others are rounded already."""
    here = bench("gpt2")
    data = data_for(here.model, None, trained.tokenizer("gpt2"), n_samples=192, batch_size=32, max_length=12, seed=5)
    known, at = map_formats(here.model, data, FORMATS), choice(here)
    found, before = slopes_at(here, FORMATS, at), measure(here, at).value
    with_slopes, added = [], []
    for path, has in at.items():
        other = FORMATS[1 - FORMATS.index(has)]
        change = measure(here, {**at, path: other}).value - before
        foretold = found.of([path], other) - found.of([path], has) + known.apart([path], other, has)
        plain = known.together({path: other}).value - known.together({path: has}).value
        with_slopes.append(abs(foretold - change))
        added.append(abs(plain - change))
    assert sum(with_slopes) < 0.5 * sum(added)


def test_the_model_is_left_as_it_was() -> None:
    model = families.build("llama")
    here = Bench(model, data_for(model, [families.tokens(rows=2, length=8)], None, n_samples=2, batch_size=2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    slopes_at(here, ["int8"], dict.fromkeys(find_weights(here.layout), "int8"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any("forward" in module.__dict__ for module in model.modules())
