"""Fisher information against label-by-label enumeration, per-sequence gradients and an independent library."""

import json
import weakref

import numpy as np
import pytest
import torch
from exact_curvature import LAYERS, VOCAB, exact_fisher, layer_sums, rows, tiny_llama
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from families import build, tokens
from noisescope.errors import InputError, ModelError
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.fisher import estimate_fim_diagonal, fisher_diagonal

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = rows(6, 4)


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def exact(model):
    return exact_fisher(model, BATCH)


@pytest.fixture(scope="module")
def estimated(model):
    """The same text 80 times, so that only the labels differ and the exact value is that of the text."""
    return fisher_diagonal(model, [BATCH] * 80, passes=4)


def test_layers_and_tensors_are_within_their_standard_errors(estimated, exact):
    assert tuple(estimated.layers) == LAYERS
    for layer, value in layer_sums(exact).items():
        found = estimated.layers[layer].trace
        assert abs(found.value - value) < 4 * found.stderr < 0.2 * value
    for name, values in exact.items():
        found = estimated.parameters[name].trace
        assert abs(found.value - float(values.sum())) < 4 * found.stderr
    assert abs(estimated.total.trace.value - sum(map(float, (v.sum() for v in exact.values())))) < (
        4 * estimated.total.trace.stderr
    )


def test_single_elements_are_as_good_as_they_can_be(estimated, exact):
    """Relative errors of sqrt(2 / 320) and a bit more, as scores are not quite normal; none of it systematic."""
    assert estimated.diagonal is not None
    off = torch.cat([(estimated.diagonal[name] / exact[name] - 1).flatten() for name in exact if "embed" not in name])
    assert off.square().mean().sqrt() < 2 * (2 / 320) ** 0.5
    assert abs(off.mean()) < 0.03


def test_the_diagonal_adds_up_to_the_traces(estimated):
    assert estimated.diagonal is not None
    for name, curvature in estimated.parameters.items():
        assert float(estimated.diagonal[name].sum()) == pytest.approx(curvature.trace.value, rel=1e-9)
        assert curvature.size == estimated.diagonal[name].numel()
        assert curvature.mean.value == pytest.approx(float(estimated.diagonal[name].mean()), rel=1e-9)
    assert sum(curvature.trace.value for curvature in estimated.layers.values()) == pytest.approx(
        estimated.total.trace.value
    )
    assert estimated.total.size == sum(curvature.size for curvature in estimated.layers.values())


def test_intervals_cover_the_truth(model, exact):
    """Over 30 seeds x 5 layers, 10 batches each; a nominal 95%, with the slack that 150 dependent cases need."""
    truth = layer_sums(exact)
    inside = [
        found.trace.low <= truth[layer] <= found.trace.high
        for seed in range(30)
        for layer, found in fisher_diagonal(model, [BATCH] * 10, seed=seed, per_parameter=False).layers.items()
    ]
    assert 0.87 <= np.mean(inside) <= 0.99


def test_the_empirical_one_squares_each_sequence(model):
    batches = (BATCH, rows(5, 5, 3, seed=1))
    names, weights = zip(*model.named_parameters(), strict=True)
    slow = [torch.zeros_like(weight) for weight in weights]
    for batch in batches:
        for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
            ids = batch.input_ids[row : row + 1, :length]
            loss = model(input_ids=ids, labels=ids).loss * (length - 1)
            for total, grad in zip(slow, torch.autograd.grad(loss, weights), strict=True):
                total.addcmul_(grad, grad)
    found = fisher_diagonal(model, EvaluationSet("text", batches), empirical=True)
    assert found.predicted_tokens == 5 + 3 + 4 + 4 + 2
    assert found.diagonal is not None
    for name, total in zip(names, slow, strict=True):
        torch.testing.assert_close(found.diagonal[name], total / 18, rtol=1e-4, atol=1e-6)
    assert {curvature.trace.n for curvature in found.layers.values()} == {5}


def test_the_two_are_not_the_same(model, exact, estimated):
    """Labels of the text in place of sampled ones would be caught: they are many standard errors away."""
    empirical = fisher_diagonal(model, BATCH, empirical=True)
    for layer, value in layer_sums(exact).items():
        assert abs(empirical.layers[layer].trace.value - value) > 6 * estimated.layers[layer].trace.stderr


def test_sums_alone_give_the_same_figures(model):
    whole, sums = (fisher_diagonal(model, [BATCH] * 3, per_parameter=keep) for keep in (True, False))
    assert sums.diagonal is None
    assert sums.layers == whole.layers
    assert sums.parameters == whole.parameters


def test_one_gradient_is_held_at_a_time(model, monkeypatch):
    alive, real = [], torch.autograd.grad

    def watched(*args, **options):
        assert not any(ref() is not None for ref in alive)
        grads = real(*args, **options)
        alive[:] = [weakref.ref(grad) for grad in grads]
        return grads

    monkeypatch.setattr(torch.autograd, "grad", watched)
    fisher_diagonal(model, [BATCH] * 2, passes=3)
    assert alive


def test_the_same_seed_gives_the_same_labels(model):
    one, same, other = (fisher_diagonal(model, [BATCH] * 2, seed=seed).total.trace for seed in (0, 0, 1))
    assert one == same != other


def test_batches_differ_in_their_labels(model):
    """Two copies of one batch have draws of their own, as have two passes."""
    assert fisher_diagonal(model, [BATCH] * 2).total.trace.stderr > 0
    once, twice = (fisher_diagonal(model, BATCH, passes=passes).total.trace.value for passes in (1, 2))
    assert once != twice


def test_batches_count_by_their_predictions(model):
    long, short, none = rows(8, 8, 8, seed=1), rows(2, seed=2), rows(1)
    first, second = (fisher_diagonal(model, data).total.trace.value for data in ([long], [none, short]))
    both = fisher_diagonal(model, [long, short])
    assert both.predicted_tokens == 22
    assert both.total.trace.value == pytest.approx((21 * first + second) / 22)


# --- an independent library -----------------------------------------------------------------------------------------


class _Predictions(nn.Module):
    """Logits of the first five predictions of each row, as a classifier that others understand."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)


def test_curvlinops_agrees():
    """The generalised Gauss-Newton matrix of the cross entropy is the Fisher information."""
    curvlinops = pytest.importorskip("curvlinops")
    model = tiny_llama(attn="eager")
    batch = rows(6, 6)
    weights = dict(model.named_parameters())
    labels = batch.input_ids[:, 1:].flatten()
    ggn = curvlinops.GGNLinearOperator(
        _Predictions(model), nn.CrossEntropyLoss(), list(weights.values()), [(batch.input_ids, labels)],
        num_data=len(labels),
        check_deterministic=False, batch_size_fn=lambda ids: ids.shape[0] * (ids.shape[1] - 1),
    )  # fmt: skip
    size = sum(weight.numel() for weight in weights.values())
    diagonal = (ggn @ torch.eye(size, dtype=torch.float64)).diagonal()
    theirs = dict(zip(weights, diagonal.split([weight.numel() for weight in weights.values()]), strict=True))
    found = fisher_diagonal(model, [batch] * 25, passes=4)
    for name, values in exact_fisher(model, batch).items():
        torch.testing.assert_close(theirs[name].view_as(values), values, rtol=1e-4, atol=1e-5)
        trace = found.parameters[name].trace
        assert abs(trace.value - float(theirs[name].sum())) < 4 * trace.stderr


# --- other models, other data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_fixture_models(family):
    model = AutoModelForCausalLM.from_pretrained(f"tests/fixtures/{family}")
    ids = torch.randint(3, 500, (2, 32), generator=torch.Generator().manual_seed(0))
    found = fisher_diagonal(model, [{"input_ids": ids}] * 2, per_parameter=False)
    assert list(found.layers) == ["embed", *range(8), "final_norm"] + (["head"] if family == "llama" else [])
    assert all(curvature.trace.low > 0 for curvature in found.layers.values())
    assert found.predicted_tokens == 2 * 2 * 31
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["layers"]["3"]["size"] == found.layers[3].size
    assert told["cost"] == 3.0


def test_a_tied_weight_counts_once_with_both_its_uses():
    model, ids = tiny_llama(tied=True), BATCH.input_ids[:1]
    found = fisher_diagonal(model, {"input_ids": ids}, empirical=True)
    assert tuple(found.layers) == LAYERS[:-1]
    assert found.total.size == sum(weight.numel() for weight in model.parameters())
    (slow,) = torch.autograd.grad(model(input_ids=ids, labels=ids).loss * 5, [model.lm_head.weight])
    assert found.layers["embed"].trace.value == pytest.approx(float(slow.square().sum()) / 5, rel=1e-5)


def test_experts_without_tokens_count_zero():
    model = build("mixtral")
    found = fisher_diagonal(model, tokens("mixtral", rows=1, length=3))
    assert found.diagonal is not None
    assert all(bool(values.isfinite().all()) for values in found.diagonal.values())


def test_narrow_models_are_summed_in_float32():
    model = build("llama").bfloat16()
    found = fisher_diagonal(model, tokens())
    assert found.diagonal is not None
    assert {values.dtype for values in found.diagonal.values()} == {torch.float32}
    assert not any(values.requires_grad for values in found.diagonal.values())


def test_the_documented_name(model):
    found = estimate_fim_diagonal(model, [{"input_ids": BATCH.input_ids, "attention_mask": BATCH.attention_mask}])
    same = fisher_diagonal(model, BATCH).diagonal
    assert {name: values.shape for name, values in found.items()} == {n: w.shape for n, w in model.named_parameters()}
    assert all(torch.equal(found[name], values) for name, values in same.items())


def test_cost_is_what_a_counter_of_operations_finds():
    model, data = build("llama"), tokens(rows=2, length=32)
    with FlopCounterMode(display=False) as forward:
        model(**data, use_cache=False)
    with FlopCounterMode(display=False) as all_of_it:
        cost = fisher_diagonal(model, data, passes=3).cost
    assert cost == 7.0
    assert all_of_it.get_total_flops() / forward.get_total_flops() == pytest.approx(cost, rel=0.03)


def test_progress_is_told_for_each_batch(model):
    seen = []
    fisher_diagonal(model, [BATCH] * 3, progress=lambda: seen.append(1))
    assert len(seen) == 3


# --- the model is left as it was ------------------------------------------------------------------------------------


def test_nothing_is_left_on_the_model_also_after_an_exception():
    model = build("gpt2").train()
    list(model.parameters())[3].requires_grad_(False)
    list(model.parameters())[5].grad = torch.ones_like(list(model.parameters())[5])
    state = torch.get_rng_state()
    before = [(weight.requires_grad, weight.grad is None, weight.clone()) for weight in model.parameters()]

    def broken():
        yield tokens()
        raise OSError("the disk is gone")

    fisher_diagonal(model, tokens())
    with pytest.raises(OSError, match="the disk is gone"):
        fisher_diagonal(model, broken())
    for weight, (flag, no_grad, value) in zip(model.parameters(), before, strict=True):
        assert (weight.requires_grad, weight.grad is None) == (flag, no_grad)
        assert torch.equal(weight, value)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_is_off():
    model = build("gpt2")
    quiet = fisher_diagonal(model, tokens()).total.trace.value
    assert fisher_diagonal(model.train(), tokens()).total.trace.value == quiet


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "batches: got no token to predict, expected rows of at least two tokens"),
        (rows(1), {}, "batches: got no token to predict"),
        (BATCH, {"passes": 0}, "passes: got 0, expected >= 1"),
        (BATCH, {"passes": 2, "empirical": True}, "passes: got 2, expected 1 for empirical labels, which are given"),
    ],
)
def test_mistakes(model, data, options, message):
    with pytest.raises(InputError, match=message):
        fisher_diagonal(model, data, **options)


def test_a_model_that_gives_no_numbers_is_named():
    model = tiny_llama()
    nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(ModelError, match="the model's output is not finite"):
        fisher_diagonal(model, BATCH)


def test_the_tiny_model_is_not_trivial(model):
    """Were all predictions uniform, sampled and given labels could hardly be told apart."""
    logits = model(input_ids=BATCH.input_ids[:1]).logits
    assert logits.shape[-1] == VOCAB
    assert logits.softmax(-1).max() > 0.5
