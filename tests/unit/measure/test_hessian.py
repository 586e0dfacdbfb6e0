"""Hessian traces against matrices that are known, whole Hessians of a tiny model and an independent library."""

import json

import numpy as np
import pytest
import torch
from exact_curvature import LAYERS, exact_fisher, exact_hessian, layer_sums, rows, tiny_llama
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from families import build, tokens
from noisescope.errors import InputError, ModelError
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.hessian import (
    compute_layer_hessian_trace,
    estimate_hessian_trace,
    hessian_trace,
    next_token_loss,
)

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = rows(6, 4)


# --- a loss whose Hessian is a given matrix -------------------------------------------------------------------------

SIZE = 12


def stack() -> nn.Module:
    """Two blocks of six parameters each."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(3, 2, bias=False)) for _ in range(2))).double()


def quadratic(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """w . M w / 2 over all parameters w, so that M is the Hessian."""
    w = torch.cat([weight.flatten() for weight in model.parameters()])
    return w @ batch["M"] @ w / 2


def matrix(seed: int = 0, *, coupling: float = 1.0) -> torch.Tensor:
    """A symmetric matrix with large entries between the blocks."""
    half = torch.randn(SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    made = half + half.T + torch.diag(torch.linspace(3, 9, SIZE, dtype=torch.float64))
    made[:6, 6:] *= coupling
    made[6:, :6] *= coupling
    return made


def shifted(shifts) -> list[dict[str, torch.Tensor]]:
    """Batches with the same matrix, but for a multiple of the identity."""
    return [{"M": matrix() + float(by) * torch.eye(SIZE, dtype=torch.float64)} for by in shifts]


def block_traces(given: torch.Tensor) -> dict[int, float]:
    return {0: float(given.diagonal()[:6].sum()), 1: float(given.diagonal()[6:].sum())}


def test_a_known_matrix_within_its_standard_error():
    given = matrix()
    found = hessian_trace(stack(), {"M": given}, loss_fn=quadratic, probes=2000)
    for layer, truth in block_traces(given).items():
        trace = found.layers[layer].trace
        assert abs(trace.value - truth) < 4 * trace.stderr < 0.5 * truth
        assert trace.stderr == pytest.approx(found.probe_stderr[layer])
    assert (found.clusters, found.batches, found.probes) == ("probes", 1, 2000)


def test_the_noise_is_that_of_the_formula():
    """2 |off-diagonal of the block|^2 + |the rest of its rows|^2: less would be a probe that is not random enough."""
    given = matrix()
    found = hessian_trace(stack(), {"M": given}, loss_fn=quadratic, probes=2000)
    block, beside = given[:6, :6], given[:6, 6:]
    variance = 2 * (block.square().sum() - block.diagonal().square().sum()) + beside.square().sum()
    assert found.probe_stderr[0] == pytest.approx(float(variance / 2000) ** 0.5, rel=0.1)


def test_a_diagonal_matrix_needs_one_probe():
    given = torch.diag(torch.linspace(-1, 4, SIZE, dtype=torch.float64))
    found = hessian_trace(stack(), {"M": given}, loss_fn=quadratic, probes=1)
    for layer, truth in block_traces(given).items():
        assert found.layers[layer].trace.value == pytest.approx(truth)
        assert found.layers[layer].trace.stderr == found.probe_stderr[layer] == float("inf")


def test_coupling_between_layers_is_noise_and_no_bias():
    """Were a layer paired with another one's signs or products, their coupling would be booked as curvature."""
    given = matrix(coupling=20.0)
    found = hessian_trace(stack(), {"M": given}, loss_fn=quadratic, probes=2000)
    for layer, truth in block_traces(given).items():
        assert abs(found.layers[layer].trace.value - truth) < 4 * found.probe_stderr[layer]


@pytest.mark.parametrize("batches", [1, 6])
def test_intervals_cover_the_truth(batches):
    """Of one matrix, by its probes; of the population that six matrices come from, by how these differ."""
    model, inside, truth = stack(), [], block_traces(matrix())
    for seed in range(100):
        shifts = np.random.default_rng(seed).normal(size=batches) * (batches > 1)
        found = hessian_trace(model, shifted(shifts), loss_fn=quadratic, probes=10 if batches == 1 else 3, seed=seed)
        inside += [found.layers[layer].trace.low <= truth[layer] <= found.layers[layer].trace.high for layer in truth]
    assert 0.9 <= np.mean(inside) <= 0.99


def test_batches_have_probes_of_their_own_and_probes_alone_have_their_error():
    found = hessian_trace(stack(), shifted([0] * 20), loss_fn=quadratic, probes=5)
    assert (found.clusters, found.batches) == ("batches", 20)
    for layer in (0, 1):  # the batches are the same, so that probes are all that differs
        assert found.layers[layer].trace.stderr == pytest.approx(found.probe_stderr[layer], rel=0.5)
    wide = hessian_trace(stack(), shifted(range(0, 200, 10)), loss_fn=quadratic, probes=5)
    assert wide.probe_stderr[0] == pytest.approx(found.probe_stderr[0])
    assert wide.layers[0].trace.stderr > 5 * wide.probe_stderr[0]


def test_a_loss_without_curvature_has_trace_zero():
    found = hessian_trace(stack(), [None], loss_fn=lambda model, _: sum(w.sum() for w in model.parameters()))
    assert {curvature.trace.value for curvature in found.layers.values()} == {0.0}
    first = hessian_trace(stack(), [None], loss_fn=lambda model, _: next(model.parameters()).square().sum())
    assert {layer: curvature.trace.value for layer, curvature in first.layers.items()} == {0: 12.0, 1: 0.0}


def test_what_is_one_batch_and_what_are_several():
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return next(model.parameters()).square().sum()

    x = torch.ones(2)
    for data in ({"input_ids": x}, x, (x, x), [x, x]):
        seen.clear()
        assert hessian_trace(stack(), data, loss_fn=loss, probes=2).batches == 1
        assert seen == [data] if not isinstance(data, torch.Tensor) else seen[0] is data
    for data in ([{"x": x}] * 3, iter([(x, x)] * 3), ["a", "b", "c"]):
        assert hessian_trace(stack(), data, loss_fn=loss, probes=2).batches == 3


# --- a language model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact():
    return exact_hessian(tiny_llama(attn="eager"), BATCH)


def test_the_tiny_model_within_standard_errors(exact):
    found = hessian_trace(tiny_llama(), BATCH, probes=200)
    assert tuple(found.layers) == LAYERS
    truth = layer_sums(exact)
    for layer, curvature in found.layers.items():
        assert abs(curvature.trace.value - truth[layer]) < 4 * curvature.trace.stderr
    for name, values in exact.items():
        curvature = found.parameters[name]
        assert abs(curvature.trace.value - float(values.sum())) < 4 * curvature.trace.stderr
    assert found.total.trace.stderr * 4 < sum(truth.values())
    assert abs(found.total.trace.value - sum(truth.values())) < 4 * found.total.trace.stderr
    assert found.total.size == sum(values.numel() for values in exact.values())


def test_products_are_those_of_the_whole_hessian():
    """Not only on average: the product of every probe, by layer, from the matrix written out."""
    from noisescope.keys import Key
    from noisescope.measure.hessian import _signs
    from noisescope.measure.parameters import Parameters

    model = tiny_llama(attn="eager")
    parameters = Parameters.of(model)
    size = sum(parameters.sizes)
    grads = torch.autograd.grad(next_token_loss(model, BATCH), parameters.tensors, create_graph=True)
    flat = torch.cat([grad.flatten() for grad in grads])
    unit = torch.eye(size, dtype=torch.float64)
    parts = torch.autograd.grad(flat, parameters.tensors, unit, is_grads_batched=True)
    whole = torch.cat([part.flatten(1) for part in parts], 1)
    torch.testing.assert_close(whole, whole.T, rtol=1e-3, atol=1e-5)
    found = hessian_trace(model, BATCH, probes=1, seed=3)
    (signs,) = (torch.cat([s.flatten() for s in _signs(parameters, Key(3, "hessian"), probe)]) for probe in (0,))
    assert signs.abs().eq(1).all()
    products = (signs * (whole @ signs)).split(parameters.sizes)
    for name, product in zip(parameters.names, products, strict=True):
        assert found.parameters[name].trace.value == pytest.approx(float(product.sum()), rel=1e-3, abs=1e-4)


def test_the_head_has_the_curvature_of_the_fisher_information(exact):
    """The loss is convex in the last linear layer, and there both are the same matrix: units and divisors agree."""
    fisher = exact_fisher(tiny_llama(), BATCH)["lm_head.weight"]
    torch.testing.assert_close(exact["lm_head.weight"], fisher, rtol=1e-4, atol=1e-6)


def test_batches_count_by_their_predictions():
    model, batches = tiny_llama(), (BATCH, rows(3, seed=1), rows(1))
    found = hessian_trace(model, EvaluationSet("text", batches), probes=2)
    assert (found.clusters, found.batches) == ("batches", 2)
    first = hessian_trace(model, BATCH, probes=2).total.trace.value
    second = hessian_trace(model, [rows(1), batches[1]], probes=2).total.trace.value
    assert found.total.trace.value == pytest.approx((8 * first + 2 * second) / 10)


def test_curvlinops_agrees():
    curvlinops = pytest.importorskip("curvlinops")
    model = tiny_llama(attn="eager", act="tanh")  # silu has no second derivative in forward mode, which they use
    batch = rows(6, 6)
    weights = dict(model.named_parameters())

    class Predictions(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)

    labels = batch.input_ids[:, 1:].flatten()
    operator = curvlinops.HessianLinearOperator(
        Predictions(), nn.CrossEntropyLoss(), list(weights.values()), [(batch.input_ids, labels)],
        num_data=len(labels), check_deterministic=False,
        batch_size_fn=lambda ids: ids.shape[0] * (ids.shape[1] - 1),
    )  # fmt: skip
    size = sum(weight.numel() for weight in weights.values())
    diagonal = (operator @ torch.eye(size, dtype=torch.float64)).diagonal()
    theirs = dict(zip(weights, diagonal.split([weight.numel() for weight in weights.values()]), strict=True))
    for name, values in exact_hessian(model, batch).items():
        torch.testing.assert_close(theirs[name].view_as(values), values, rtol=1e-3, atol=1e-4)
    found = hessian_trace(model, batch, probes=60)
    for layer, truth in layer_sums(theirs).items():
        assert abs(found.layers[layer].trace.value - truth) < 4 * found.probe_stderr[layer]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_fused_attention_gives_what_eager_attention_gives(family):
    ids = torch.randint(3, 500, (2, 32), generator=torch.Generator().manual_seed(0))
    fused, eager = (
        hessian_trace(
            AutoModelForCausalLM.from_pretrained(f"tests/fixtures/{family}", attn_implementation=attn),
            {"input_ids": ids},
            probes=2,
        )
        for attn in ("sdpa", "eager")
    )
    assert list(fused.layers) == ["embed", *range(8), "final_norm"] + (["head"] if family == "llama" else [])
    for layer, curvature in fused.layers.items():
        assert curvature.trace.value == pytest.approx(eager.layers[layer].trace.value, rel=1e-2, abs=0.1)
    told = json.loads(json.dumps(fused.as_json(), allow_nan=False))
    assert told["clusters"] == "probes"
    assert set(told["layers"]) == set(told["probe_stderr"]) == set(map(str, fused.layers))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # the choice of the caller is back afterwards
        hessian_trace(tiny_llama(), BATCH, probes=1)
        assert not torch.backends.cuda.math_sdp_enabled()


def test_a_tied_weight_counts_once():
    model = tiny_llama(tied=True, attn="eager")
    found = hessian_trace(model, BATCH, probes=60)
    assert tuple(found.layers) == LAYERS[:-1]
    truth = float(exact_hessian(model, BATCH)["model.embed_tokens.weight"].sum())
    assert abs(found.layers["embed"].trace.value - truth) < 4 * found.probe_stderr["embed"]


def test_the_documented_names():
    model = tiny_llama()
    data = {"input_ids": BATCH.input_ids, "attention_mask": BATCH.attention_mask}
    same = hessian_trace(model, BATCH, probes=3)
    layers = compute_layer_hessian_trace(model, None, data, num_samples=3)
    assert layers == {layer: curvature.trace.value for layer, curvature in same.layers.items()}
    assert compute_layer_hessian_trace(model, next_token_loss, data, num_samples=3) == layers
    assert estimate_hessian_trace(model, next_token_loss, data, 3) == pytest.approx(sum(layers.values()))

    def huggingface(model, batch):
        return model(**batch, labels=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)).loss

    theirs = compute_layer_hessian_trace(model, huggingface, data, num_samples=3)
    assert theirs == pytest.approx(layers, rel=1e-3, abs=1e-4)


def test_cost_is_what_a_counter_of_operations_finds():
    model, data = build("llama", attn="eager"), tokens(rows=2, length=32)
    with FlopCounterMode(display=False) as forward:
        model(**data, use_cache=False)
    with FlopCounterMode(display=False) as all_of_it:
        cost = hessian_trace(model, data, probes=4).cost
    assert cost == 3.0 + 6.0 * 4
    assert all_of_it.get_total_flops() / forward.get_total_flops() == pytest.approx(cost, rel=0.03)


def test_probes_come_from_the_key_and_the_name():
    one, same, other = (hessian_trace(tiny_llama(), BATCH, probes=2, seed=seed).layers for seed in (5, 5, 6))
    assert one == same
    assert one[0] != other[0]


def test_progress_is_told_for_each_batch():
    seen = []
    hessian_trace(tiny_llama(), [BATCH] * 3, probes=1, progress=lambda: seen.append(1))
    assert len(seen) == 3


# --- the model is left as it was ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [None, 0, 1])
def test_nothing_is_left_on_the_model_also_after_an_exception(fails_at):
    model = build("gpt2").train()
    weights = list(model.parameters())
    weights[3].requires_grad_(False)
    weights[5].grad = torch.ones_like(weights[5])
    model.transformer.h[0].eval()
    state = torch.get_rng_state()
    before = [(weight.requires_grad, weight.grad is None, weight.clone()) for weight in weights]
    modes = [module.training for module in model.modules()]
    calls = []

    def loss(model, batch):
        calls.append(batch)
        if len(calls) - 1 == fails_at:
            raise KeyboardInterrupt
        return next_token_loss(model, batch) * (1 + 0 * torch.rand(()))

    if fails_at is None:
        hessian_trace(model, [tokens()] * 2, loss_fn=loss, probes=2)
    else:
        with pytest.raises(KeyboardInterrupt):
            hessian_trace(model, [tokens()] * 2, loss_fn=loss, probes=2)
    for weight, (flag, no_grad, value) in zip(weights, before, strict=True):
        assert (weight.requires_grad, weight.grad is None) == (flag, no_grad)
        assert torch.equal(weight, value)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.cuda.flash_sdp_enabled()


# --- mistakes -------------------------------------------------------------------------------------------------------


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda model, _: 1.0, InputError, "loss_fn: got float, expected one number that depends on the parameters"),
        (lambda model, _: torch.ones(2), InputError, r"loss_fn: got a tensor of \[2\], expected one number"),
        (
            lambda model, _: torch.ones(()),
            InputError,
            r"loss_fn: got a tensor of \[\], expected one number that depends",
        ),
        (lambda model, _: next(model.parameters()).sum() * torch.nan, ModelError, r"data\[0\]: the loss is nan, so"),
        (
            lambda model, _: _Once.apply(next(model.parameters())).sum().square(),
            ModelError,
            r"an operator .* has no second derivative \(try attn=.eager.\): a function marked with once_differentiable",
        ),
    ],
)
def test_losses_that_cannot_be_meant(loss, error, message):
    with pytest.raises(error, match=message):
        hessian_trace(stack(), [None], loss_fn=loss, probes=1)


def test_a_fused_kernel_that_the_loss_insists_on_is_named():
    def fused(model, batch):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return next_token_loss(model, batch)

    message = r"an operator .* has no second derivative \(try attn=\"eager\"\): .*flash_attention.* is not implemented"
    with pytest.raises(ModelError, match=message):
        hessian_trace(build("gpt2"), tokens(), loss_fn=fused, probes=1)


def test_other_mistakes():
    with pytest.raises(InputError, match="probes: got 0, expected >= 1"):
        hessian_trace(stack(), [None], loss_fn=quadratic, probes=0)
    for nothing in ([], rows(1)):
        with pytest.raises(InputError, match="data: got no token to predict, expected a batch or several"):
            hessian_trace(tiny_llama(), nothing)
    with pytest.raises(InputError, match=r"data\[1\]: got str, expected a dictionary of tensors with input_ids"):
        hessian_trace(tiny_llama(), [BATCH, "text"], probes=1)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # errors of the user's own loss are the user's
        hessian_trace(stack(), torch.ones(1, 5), loss_fn=lambda model, x: model(x).sum())
