"""Noise floors of mixtures of experts, where rounding may move the rows of a value."""

import pytest
import torch

import noisescope as ns
from families import build, tokens

pytestmark = pytest.mark.usefixtures("one_thread")


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
