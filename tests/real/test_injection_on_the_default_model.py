"""Injection on the real thing: counts, restoration, and noise that does what its size says. Five forwards."""

import pytest
import torch

import noisescope as ns
from noisescope.models import load

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def loaded():
    return load()


def test_injection_on_the_default_model(loaded) -> None:
    model = loaded.model
    batch = loaded.tokenizer("The capital of France is the city of Paris, on the river Seine.", return_tensors="pt")
    weights = sum(p.double().sum() for p in model.parameters()).item()

    def logits(scale: float | None = None, **where) -> torch.Tensor:
        nonlocal run
        with torch.no_grad():
            if scale is None:
                return model(**batch).logits
            with ns.inject(model, ns.RelativeGaussian(scale), **where) as run:
                return model(**batch).logits

    run = None
    clean = logits()
    everywhere = logits(0.05)
    counts = {name: count["forward"] for name, count in run.stats.by_operator.items()}
    assert counts == {
        "attention": 30,
        "embedding": 1,
        "linear": 211,
        "matmul": 30,  # of 60: the second product is disturbed as attention
        "residual": 60,
        "rms_norm": 61,
        "silu": 30,
        "softmax": 30,
    }
    assert run.stats.dose == pytest.approx(0.05, rel=0.01)
    assert run.steps_difference < 1e-4
    small, large = (logits(scale, operators="linear", layers="9-11") for scale in (0.001, 0.05))
    moved = [(noisy - clean).norm().item() for noisy in (small, large, everywhere)]
    assert moved == sorted(moved)
    assert torch.equal(logits(), clean)
    assert sum(p.double().sum() for p in model.parameters()).item() == weights
