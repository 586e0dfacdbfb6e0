"""Noise floors of mixtures of experts, where rounding may move the rows of a value."""

import pytest
import torch

import noisescope as ns
from families import build, tokens
from noisescope.traces.floor import APART, _moved

pytestmark = pytest.mark.usefixtures("one_thread")

EXPERTS = frozenset({"mlp.experts"})


def errors(**found: float) -> dict[tuple[str, str], float]:
    names = {"norm": "norm.rms_norm.0", "router": "mlp.gate.linear.0", "expert": "mlp.experts.linear.0"}
    return {("prefill", names[name]): error for name, error in found.items()}


@pytest.mark.parametrize(
    ("norm", "expert", "moved"),
    [
        (1e-6, 2e-6, False),
        (1e-6, 1e-5, True),
        (0.01, 0.03, False),
        (0.01, 0.05, True),
        (0.1, 0.2, False),
        (0.1, 0.3, True),
    ],
)
def test_rows_in_other_places_are_told_by_their_error(norm: float, expert: float, moved: bool) -> None:
    found = _moved(errors(norm=norm, router=norm / 10, expert=expert), EXPERTS)
    assert found == ({("prefill", "mlp.experts.linear.0")} if moved else set())


def test_a_model_without_experts_has_no_such_values() -> None:
    assert _moved(errors(norm=1e-6, expert=1.0), frozenset()) == set()


def test_experts_are_judged_where_routing_is_stable() -> None:
    """In float32 no token changes its expert, and errors of experts are found there; in bfloat16 some do."""
    trace = ns.trace(build("mixtral"), tokens(build("mixtral")))
    experts = [site.tolerances for site in trace.sites if ".experts." in site.name]
    assert experts
    for narrow, coarse in experts:
        assert narrow < 1e-4
        assert coarse >= APART


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
