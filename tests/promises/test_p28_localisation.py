"""P28: a healthy model is called healthy, a fault is named at its operator, and nobody else is blamed.

Mutants of the locator, each a mistake that somebody made before, must fail the same checks.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from families import LAYERS, build, tokens
from noisescope.faults import Fault
from noisescope.locating import Verdict, locate
from noisescope.locating.host import checking
from noisescope.locating.host.products import Product
from noisescope.locating.identities import identity
from noisescope.locating.tracing import Tracer

FAMILIES = ("llama", "gpt2", "mixtral", "cohere")
FAULTS = (
    Fault("gain", 0.05, "0.linear"),
    Fault("saturation", 0.2, "1"),
    Fault("noise", 0.001, "2.softmax"),
    Fault("wrong_rounding", 4, "1.linear"),
    Fault("dead_zone", 0.3, "final_norm"),
    Fault("bias", 0.3, "head"),
    Fault("stuck_at", 0.01, "embed"),
)


def calls_healthy_devices_healthy() -> bool:
    return all(
        locate(build(family).to(dtype), tokens(family)).healthy
        for family in FAMILIES
        for dtype in (torch.float32, torch.bfloat16)
    )


def names_each_fault_and_nobody_else() -> bool:
    model, inputs = build("llama", attn="eager"), tokens("llama")
    return all(_is_named(locate(model, inputs, simulate=[fault])) for fault in FAULTS)


def _is_named(verdict: Verdict) -> bool:
    return verdict.sections["truth"][0]["rank"] == 1 and len(verdict.sites) == 1


def test_healthy_devices_are_called_healthy() -> None:
    assert calls_healthy_devices_healthy()


def test_faults_are_named_and_nobody_else() -> None:
    assert names_each_fault_and_nobody_else()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_at_every_layer_is_as_many_suspects(family: str) -> None:
    faults = [Fault("gain", 0.05, str(layer)) for layer in range(LAYERS)]
    verdict = locate(build(family), tokens(family), simulate=faults)
    assert sorted(site.layer for site in verdict.sites) == list(range(LAYERS))


# --- mutants ----------------------------------------------------------------------------------------------------


def _always_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest error is a fault, however small it is."""
    real = checking.check_product
    monkeypatch.setattr(checking, "check_product", lambda *a, **k: (max(1, real(*a, **k)[0]), real(*a, **k)[1]))


def _forgets_the_length_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of half an ulp for products."""
    monkeypatch.setattr(Product, "spread", lambda self, columns, lam, u=None: torch.zeros(()))


def _never_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locator whose probes see around the fault."""
    monkeypatch.setattr(Tracer, "_look", lambda self, call, value, real=Tracer._look: _healthy(real(self, call, value)))


def _healthy(row):
    return replace(row, host=None, failures=[], beyond=False, closer=None)


def _knows_no_known_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the identity that sees what is smaller than the rounding of a sum."""
    rest = [row for row in identity.IDENTITIES if row.name not in ("known", "one key")]
    monkeypatch.setattr(identity, "IDENTITIES", rest)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], bool]] = {
    _always_names_one: calls_healthy_devices_healthy,
    _forgets_the_length_of_sums: calls_healthy_devices_healthy,
    _never_asks_again: names_each_fault_and_nobody_else,
    _knows_no_known_product: names_each_fault_and_nobody_else,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert not MUTANTS[mutant]()
