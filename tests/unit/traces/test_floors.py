"""Noise floors, and those of mixtures of experts, where rounding may move the rows of a value."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import noisescope as ns
from families import build, tokens
from noisescope.sites import Layout
from noisescope.traces.floor import DRAWS, FACTOR, HALF, HALF_DRAWS, OneUlp

pytestmark = pytest.mark.usefixtures("one_thread")


def test_floors_are_what_the_largest_of_some_draws_does() -> None:
    """The slow way: whole values with noise put in, draw by draw."""
    model = build("qwen2").eval()
    layout, given = Layout.of(model), {"input_ids": torch.arange(12).view(2, 6)}

    def outputs(noise: Any = None) -> Tensor:
        with torch.no_grad(), noise or nullcontext():
            return model(**given).logits.double()

    clean = outputs()
    trace = ns.trace(model, given)
    assert trace.head.floor is not None
    head = next(site for site in trace.sites if site.name == "lm_head.linear.0.forward")
    for at, unit in enumerate(trace.head.floor.units):
        draws = HALF_DRAWS if unit > HALF else DRAWS
        errors = [
            float((outputs(OneUlp(layout, unit, seed=seed)) - clean).norm() / clean.norm()) for seed in range(draws)
        ]
        assert head.floors[at] == pytest.approx(max(errors), rel=0.2)
        assert head.tolerances[at] == FACTOR * head.floors[at]


def test_experts_are_judged_where_routing_is_stable() -> None:
    """In float32 no token changes its expert, and errors of experts are found there; in bfloat16 some do."""
    trace = ns.trace(build("mixtral"), tokens(build("mixtral")))
    experts = [site.tolerances for site in trace.sites if ".experts." in site.name]
    assert experts
    for narrow, coarse in experts:
        assert narrow < 1e-4
        assert coarse > 1


def test_an_expert_that_is_off_is_the_first_divergence() -> None:
    model = build("mixtral")
    given = {"input_ids": torch.arange(12).view(2, 6)}
    reference = ns.trace(model, given, inputs=True)
    place = "model.layers.1.mlp.experts.linear.0.forward"
    suspect = ns.trace(model, inputs_from=reference, floor=False, emulate=f"gain:0.01@{place}")
    found = ns.compare(reference, suspect)
    assert found.first is not None
    assert found.first.site.name == place
    assert found.sources == (1,)
