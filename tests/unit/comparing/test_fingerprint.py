"""Fingerprints: slow and obvious derivatives and densities, the promises of an answer, and that it finds noise."""

from functools import cache
from math import log, pi

import numpy as np
import pytest
import torch

from families import DECODERS, build, tokens
from noisescope import RelativeGaussian, inject
from noisescope.comparing.families import Spectrum, one_element
from noisescope.comparing.fingerprint import Fingerprints, rank_layers_by_fingerprint
from noisescope.comparing.responses import Responses, View
from noisescope.errors import InputError, ModelError, NonFinite
from noisescope.faults import Fault, FaultSimulator
from noisescope.sites import Layout
from trained import fixture

TEXT = "The keeper of the lighthouse wrote down the weather every evening before he lit the lamp. " * 4
LAYERS = 8

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def trained(name):
    """The model, 2 x 24 tokens, and its fingerprints."""
    model, tokenizer = fixture(name)
    ids = torch.tensor(tokenizer(TEXT)["input_ids"][:48]).reshape(2, 24)
    inputs = {"input_ids": ids, "use_cache": False}
    return model, inputs, Fingerprints(model, inputs)


def suspect(name, fault):
    model, inputs, _ = trained(name)
    with FaultSimulator(model, fault), torch.no_grad():
        return model(**inputs).logits


def healthy(name):
    model, inputs, _ = trained(name)
    with torch.no_grad():
        return model(**inputs).logits


# --- finding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_noise_is_found_at_its_layer(name):
    """A guess finds 2 of 16; 8 or more by chance has a probability below 0.001. Nothing here shares a seed."""
    prints = trained(name)[2]
    trials = [(layer, seed) for layer in range(LAYERS) for seed in (101, 202)]
    found = [prints.rank(suspect(name, Fault("noise", 0.01, str(layer), seed=seed + layer))) for layer, seed in trials]
    hits = sum(answer.ranking[0] == layer for answer, (layer, _) in zip(found, trials, strict=True))
    assert hits >= 8
    assert all(abs(answer.ranking[0] - layer) <= 2 for answer, (layer, _) in zip(found, trials, strict=True))


@pytest.mark.parametrize(("kind", "size", "family"), [("gain", 0.005, "function"), ("stuck_at", 0.01, "gains")])
def test_the_family_of_an_error_is_named(kind, size, family):
    for layer in (1, 3, 5):
        answer = trained("llama")[2].rank(suspect("llama", Fault(kind, size, str(layer), seed=layer)))
        assert (answer.ranking[0], answer.family[layer], answer.cannot_tell) == (layer, family, False)


@pytest.mark.parametrize("family", DECODERS)
def test_every_family_has_fingerprints(family):
    """Random weights, three layers: the structure is what is tested, by a fault that leaves nothing to chance."""
    model, inputs = build(family), tokens(family)
    with FaultSimulator(model, "gain:0.02@1"), torch.no_grad():
        logits = model(**inputs).logits
    assert rank_layers_by_fingerprint(model, inputs, logits).ranking[0] == 1


def test_the_answer_does_not_depend_on_the_seed_of_the_method():
    """The directions are all looked at in a small model, so that a seed has nothing to draw but the floor."""
    model, inputs, prints = trained("llama")
    logits = suspect("llama", Fault("noise", 0.01, "4", seed=7))
    other = rank_layers_by_fingerprint(model, inputs, logits, seed=7)
    assert other.posterior == pytest.approx(prints.rank(logits).posterior, abs=1e-6)


# --- what an answer promises ------------------------------------------------------------------------------------


def test_a_posterior_sums_to_one_and_orders_the_ranking():
    answer = trained("llama")[2].rank(suspect("llama", Fault("noise", 0.01, "2", seed=3)))
    assert sum(answer.posterior) == pytest.approx(1)
    assert sorted(answer.ranking) == list(range(LAYERS))
    assert [answer.posterior[layer] for layer in answer.ranking] == sorted(answer.posterior, reverse=True)
    assert 0 <= answer.entropy_nats <= log(LAYERS)


def test_the_same_answer_twice():
    model, inputs, _ = trained("gpt2")
    logits = suspect("gpt2", Fault("noise", 0.01, "5", seed=3))
    assert rank_layers_by_fingerprint(model, inputs, logits) == rank_layers_by_fingerprint(model, inputs, logits)


def test_the_model_is_left_as_it_was():
    model, tokenizer = fixture("llama")
    inputs = {"input_ids": torch.tensor([tokenizer(TEXT)["input_ids"][:8]]), "use_cache": False}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        clean = model(**inputs).logits
        rank_layers_by_fingerprint(model, inputs, clean * 1.01)
        assert torch.equal(model(**inputs).logits, clean)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_frozen_model_has_fingerprints_too():
    model, tokenizer = fixture("gpt2")
    model.requires_grad_(False)
    inputs = {"input_ids": torch.tensor([tokenizer(TEXT)["input_ids"][:8]]), "use_cache": False}
    with FaultSimulator(model, "gain:0.01@3"), torch.no_grad():
        logits = model(**inputs).logits
    assert rank_layers_by_fingerprint(model, inputs, logits).ranking[0] == 3


def test_passes_are_counted():
    _, _, prints = trained("llama")
    directions = 2 * 64
    assert prints.forward_passes == 1 + directions + 1
    assert prints.rank(suspect("llama", Fault("noise", 0.01, "2"))).forward_passes == prints.forward_passes + 2


def test_progress_is_told_for_every_layer():
    model, inputs, _ = trained("llama")
    told = []
    Fingerprints(model, inputs, progress=lambda stage, total: told.append((stage, total)) or (lambda: told.append(1)))
    assert told == [("layers", LAYERS), *[1] * LAYERS]


# --- it cannot tell ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_no_deviation_tells_nothing(name):
    answer = trained(name)[2].rank(healthy(name))
    assert answer.cannot_tell
    assert answer.deviation == 0
    assert answer.posterior == (1 / LAYERS,) * LAYERS
    assert answer.entropy_nats == pytest.approx(log(LAYERS))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_rounding_tells_nothing(name):
    model, inputs, prints = trained(name)
    for seed in range(5):
        with inject(model, RelativeGaussian(torch.finfo(torch.float32).eps), seed=seed + 50), torch.no_grad():
            answer = prints.rank(model(**inputs).logits)
        assert answer.cannot_tell
        assert "rounding" in answer.reason


def test_a_narrower_dtype_is_rounding_if_it_is_said():
    _model, inputs, prints = trained("llama")
    narrow = fixture("llama")[0].bfloat16()
    with torch.no_grad():
        logits = narrow(**inputs).logits
    assert "rounding" in prints.rank(logits).reason
    assert prints.rank(logits.float(), dtype=torch.bfloat16) == prints.rank(logits)


def test_a_broken_head_is_none_of_the_blocks():
    answer = trained("llama")[2].rank(suspect("llama", Fault("noise", 0.01, "head", seed=2)))
    assert answer.cannot_tell
    assert "head" in answer.reason


# --- against slow and obvious -----------------------------------------------------------------------------------


def test_derivatives_are_those_of_a_small_error():
    model, inputs, _ = trained("llama")
    layout, layer = Layout.of(model), 5
    responses = Responses(model, inputs, layout)
    view = View.of(model, layout, 24, seed=0)
    jacobian = next(found for at, found, _ in responses.jacobians(view, lambda: None) if at == layer)
    error = 1e-2 * torch.randn(2, 24, 64, generator=torch.Generator().manual_seed(1))
    ends = []
    for sign in (1, -1):
        hook = layout.blocks[layer].register_forward_hook(lambda _m, _a, out, s=sign: out + s * error)
        with torch.no_grad():
            ends.append(view(model(**inputs).logits))
        hook.remove()
    slow = (ends[0] - ends[1]) / 2
    fast = torch.einsum("nrtc,rtc->rn", jacobian, error)
    assert torch.cosine_similarity(fast, slow).min() > 0.9999


def test_the_view_keeps_the_length_of_what_the_blocks_can_do():
    model, _inputs, _ = trained("llama")
    view = View.of(model, Layout.of(model), 24, seed=0)
    assert view.positions == (23, 11)
    inside = torch.randn(2, 24, 64) @ model.lm_head.weight.detach().T
    assert view.share_inside(inside) == pytest.approx(1, abs=1e-4)
    assert view.share_inside(torch.randn(2, 24, 512)) == pytest.approx(64 / 512, rel=0.3)


def slow_density(covariance, seen):
    """log of the integral of N(seen; 0, s^2 C) ds / s, by a sum over log s, up to a constant."""
    steps = np.linspace(-6, 6, 4001)
    n, inverse = len(seen), np.linalg.inv(covariance)
    fit, volume = seen @ inverse @ seen, np.linalg.slogdet(covariance)[1]
    logs = -n / 2 * log(2 * pi) - n * steps - 0.5 * volume - 0.5 * fit * np.exp(-2 * steps)
    return np.log(np.exp(logs - logs.max()).sum()) + logs.max()


def test_the_likelihood_is_that_of_a_normal_density_of_unknown_size():
    draw = np.random.default_rng(0)
    factors, seen = torch.tensor(draw.normal(size=(2, 5, 7))), torch.tensor(draw.normal(size=10))
    leftover = torch.tensor([0.01, 0.3], dtype=torch.double)
    fast = Spectrum.of(factors).log_likelihood(seen, leftover)
    whole = np.zeros((10, 10))
    for part in range(2):
        whole[5 * part :][:5, 5 * part :][:, :5] = factors[part] @ factors[part].T
    whole /= np.trace(whole) / 10
    slow = [slow_density(whole + size * np.eye(10), seen.numpy()) for size in (0.01, 0.3)]
    assert float(fast[1] - fast[0]) == pytest.approx(slow[1] - slow[0], abs=1e-4)


def test_one_element_is_a_mixture_over_elements():
    draw = np.random.default_rng(1)
    columns, seen = draw.normal(size=(6, 9)), draw.normal(size=6)
    along, norms = torch.tensor(columns.T @ seen), torch.tensor(np.linalg.norm(columns, axis=0))
    leftover = torch.tensor([0.01, 0.3], dtype=torch.double)
    fast = one_element(torch.tensor(seen), along, norms, leftover)
    slow = []
    for size in (0.01, 0.3):
        unit = columns / np.linalg.norm(columns, axis=0)
        each = [slow_density(6 * np.outer(j, j) + size * np.eye(6), seen) for j in unit.T]
        slow.append(np.log(np.mean(np.exp(each))))
    assert float(fast[1] - fast[0]) == pytest.approx(slow[1] - slow[0], abs=1e-4)


# --- refusing ---------------------------------------------------------------------------------------------------


def test_logits_of_another_shape_are_refused():
    with pytest.raises(InputError, match="logits: got 2x24x3, expected 2x24x512"):
        trained("llama")[2].rank(torch.zeros(2, 24, 3))


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(NonFinite, match="not all finite"):
        trained("llama")[2].rank(torch.full((2, 24, 512), torch.nan))


def test_padding_is_refused():
    model, inputs, _ = trained("llama")
    mask = torch.ones(2, 24)
    mask[1, 20:] = 0
    with pytest.raises(InputError, match="padded rows"):
        Fingerprints(model, inputs | {"attention_mask": mask})


def test_a_model_in_training_is_refused():
    model, _ = fixture("gpt2")
    with pytest.raises(InputError, match="training mode"):
        Fingerprints(model.train(), tokens("gpt2"))


def test_a_model_without_a_head_is_refused():
    model, _ = fixture("gpt2")
    with pytest.raises(ModelError, match="expected a causal language model"):
        Fingerprints(model.transformer, {"input_ids": torch.arange(8)[None]})
