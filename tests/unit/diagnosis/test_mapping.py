"""The map against the exact expectation, against injection, and over families."""

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Llama4ForCausalLM, Llama4TextConfig, LlamaConfig, LlamaForCausalLM

import noisescope
from families import DECODERS, build, tokens
from noisescope.diagnosis.checking import correct
from noisescope.diagnosis.mapping import map_sensitivity
from noisescope.errors import InputError, NothingMatched
from noisescope.injection import Watch
from noisescope.measure.batches import Batch, EvaluationSet
from noisescope.measure.opening import open_data
from noisescope.points import Bench, Point
from noisescope.specs import Selection

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(ids: Tensor) -> Batch:
    return Batch(
        ids, torch.ones_like(ids), torch.ones(len(ids), ids.shape[1] - 1, dtype=torch.bool), tuple(range(len(ids)))
    )


def data(family: str = "llama", *, batches: int = 4, size: int = 8, length: int = 16) -> EvaluationSet:
    made = []
    for number in range(batches):
        batch = rows(tokens(family, rows=size, length=length, seed=number)["input_ids"])
        made.append(
            Batch(
                batch.input_ids, batch.attention_mask, batch.predicted, tuple(range(number * size, (number + 1) * size))
            )
        )
    return EvaluationSet("made up", tuple(made))


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


class Values:
    """Keeps every value of a forward pass: the slow way needs them all."""

    def __init__(self) -> None:
        self.kept: list[tuple[tuple[object, str], str, Tensor]] = []

    def wants(self, layer: object, operator: str, module: str, phase: str) -> bool:
        return phase == "forward"

    def forward(self, sites: tuple, value: Tensor, *, step: int, owned: bool) -> Tensor:
        if sites[0].operator == "embedding":
            value = value.detach().requires_grad_()
        self.kept += [((site.layer, site.operator), site.name, value) for site in sites]
        return value

    def backward(self, site: object, grad: Tensor, *, step: int, part: int) -> Tensor:
        return grad


def exact_curvature(model: LlamaForCausalLM, ids: Tensor) -> dict[tuple[object, str], float]:
    """sum over positions t and tokens v of p(v | t) (y d log p(v | t) / dy)^2, one backward pass for each (t, v)."""
    values = Values()
    with Watch(values, model, in_steps=True):
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    found: dict[tuple[object, str], float] = {}
    log_p = logits.double().log_softmax(-1)
    for t in range(len(log_p)):
        for v in range(log_p.shape[1]):
            grads = torch.autograd.grad(
                log_p[t, v], [y for _, _, y in values.kept], retain_graph=True, allow_unused=True
            )
            for (cell, _, y), grad in zip(values.kept, grads, strict=True):
                if grad is not None:
                    weight = float(log_p[t, v].detach().exp()) * float((y * grad).double().square().sum())
                    found[cell] = found.get(cell, 0.0) + weight
    return {cell: total / len(log_p) for cell, total in found.items()}


def test_the_map_is_the_exact_expectation() -> None:
    """Drawn labels against all of them, weighed by their probability."""
    model = tiny()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    exact = exact_curvature(model, ids)
    found = map_sensitivity(model, EvaluationSet("one", (rows(ids.repeat(64, 1)),)), passes=16)
    assert set(found.relative) == set(exact)
    for cell, figure in found.relative.items():
        assert figure.value == pytest.approx(exact[cell], rel=0.12), cell  # 1024 draws of 5 labels
        assert abs(figure.value - exact[cell]) < 4.5 * figure.stderr, cell
    assert np.median([found.relative[cell].value / exact[cell] for cell in exact]) == pytest.approx(1, abs=0.03)


def test_channels_add_up_to_their_cells() -> None:
    model = build("llama")
    found = map_sensitivity(model, data(), passes=1)
    for cell, figure in found.relative.items():
        sites = [name for name, site in found.sites.items() if (site.layer, site.operator) == cell]
        assert sum(float(found.channels[name].relative.sum()) for name in sites) == pytest.approx(
            figure.value, rel=1e-4
        )
    down = found.channels["model.layers.1.mlp.down_proj.linear.0.forward"]
    assert down.relative.shape == (32,)
    assert found.channels["model.layers.1.self_attn.softmax.0.forward"].relative.shape == (4,)  # by head


def measured(bench: Bench, cell: tuple[object, str], scale: float, trials: int) -> float:
    point = Point(Selection((cell[0],), (cell[1],)), noisescope.RelativeGaussian(scale), trials=trials)
    return bench.run(point).comparison.kl.value


def every_other(families: Iterable[str], first: int) -> list[Any]:
    """All of them; by default these, so that two tests meet all families between them."""
    slow = {at: [pytest.mark.slow] for at in (0, 1) if at != first}
    return [pytest.param(family, marks=slow.get(at % 2, [])) for at, family in enumerate(families)]


@pytest.mark.parametrize("family", every_other([family for family in DECODERS if family != "mixtral"], 0))
def test_every_family_as_injection_has_it(family: str) -> None:
    """Random weights: predicted over measured at scale 0.01, every third cell and all outside the blocks."""
    model, evaluation = build(family), data(family)
    found = map_sensitivity(model, evaluation, passes=2)
    predicted = found.predict(noisescope.RelativeGaussian(0.01))
    bench = Bench(model, evaluation)
    some = [cell for at, cell in enumerate(predicted) if at % 3 == 0 or not isinstance(cell[0], int)]
    ratios = [predicted[cell].value / measured(bench, cell, 0.01, 1) for cell in some]
    assert 0.8 < np.median(ratios) < 1.25
    assert min(ratios) > 0.6
    assert max(ratios) < 1.7
    assert {"embed", "final_norm", "head"} <= {layer for layer, _ in predicted}


def test_other_noises_have_maps_too() -> None:
    model, evaluation = build("llama"), data()
    found, bench = map_sensitivity(model, evaluation, passes=2), Bench(model, evaluation)
    cell = (1, "linear")
    for noise in (noisescope.Uniform(0.02), noisescope.AbsoluteGaussian(0.001)):
        got = bench.run(Point(Selection((1,), ("linear",)), noise, trials=2)).comparison.kl.value
        assert found.predict(noise)[cell].value == pytest.approx(got, rel=0.25), noise
    with pytest.raises(InputError, match='"bit_flip" has no map'):
        found.predict(noisescope.BitFlip(0.001))


def test_it_grows_with_the_square_of_the_scale() -> None:
    found = map_sensitivity(build("llama"), data(batches=1), passes=1)
    small, large = (found.predict(noisescope.RelativeGaussian(scale)) for scale in (0.01, 0.03))
    assert all(large[cell].value == pytest.approx(9 * small[cell].value) for cell in small)
    assert found.predict(noisescope.RelativeGaussian(0.01), 0.03) == large


def test_a_selection_of_cells() -> None:
    found = map_sensitivity(build("llama"), data(batches=1), selection=Selection((1, "head"), ("linear",)), passes=1)
    assert set(found.relative) == {(1, "linear"), ("head", "linear")}
    with pytest.raises(NothingMatched, match="operators gelu: nothing to map"):
        map_sensitivity(build("llama"), data(batches=1), selection=Selection(operators=("gelu",)))


def test_the_model_is_left_as_it_was_and_frozen_ones_work() -> None:
    model = build("gpt2")
    before = {name: p.clone() for name, p in model.named_parameters()}
    first = map_sensitivity(model, data("gpt2", batches=1), passes=1)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    model.requires_grad_(False)
    frozen = map_sensitivity(model, data("gpt2", batches=1), passes=1)
    assert not any(p.requires_grad for p in model.parameters())
    assert all(
        frozen.relative[cell].value == pytest.approx(first.relative[cell].value, rel=1e-6) for cell in first.relative
    )


def test_values_are_let_go_of() -> None:
    """Nothing of a pass outlives it: also not when it fails half-way."""
    import gc

    model = build("llama")
    seen: list[weakref.ref] = []
    handle = model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: seen.append(weakref.ref(out)))
    gc.disable()
    try:
        map_sensitivity(model, data(batches=2), passes=2)
        assert len(seen) == 2
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
        handle.remove()


def test_a_padded_row_counts_as_the_same_row_alone() -> None:
    model = build("llama")
    ids = tokens("llama", rows=2, length=12)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    padded = Batch(ids, mask, mask[:, 1:].bool(), (0, 1))
    alone = [rows(ids[:1]), rows(ids[1:, :8])]
    both = map_sensitivity(model, EvaluationSet("p", (padded,)), passes=150, seed=1)
    apart = [map_sensitivity(model, EvaluationSet("a", (batch,)), passes=150, seed=2) for batch in alone]
    for cell in both.relative:
        expected = (apart[0].relative[cell].value * 11 + apart[1].relative[cell].value * 7) / 18
        assert math.log(both.relative[cell].value / expected) == pytest.approx(0, abs=0.25), cell


@pytest.mark.parametrize("family", every_other(sorted(DECODERS, key="mixtral".__ne__), 0))
def test_block_by_block_it_is_the_same_map(family: str) -> None:
    model, evaluation = build(family), data(family, batches=2)
    at_once, by_block = (map_sensitivity(model, evaluation, by_block=way) for way in (False, True))
    assert set(by_block.relative) == set(at_once.relative)
    for cell, figure in at_once.relative.items():
        assert by_block.relative[cell].value == pytest.approx(figure.value, rel=1e-4), cell
        assert by_block.absolute[cell].value == pytest.approx(at_once.absolute[cell].value, rel=1e-4), cell
    resumed = map_sensitivity(model, evaluation, recordings=Bench(model, evaluation).recordings)
    assert resumed.relative == by_block.relative
    assert (at_once.cost, by_block.cost, resumed.cost) == (3.0, 4.0, 3.0)
    assert all("forward" not in module.__dict__ for module in model.modules())


def graph_bytes(model: torch.nn.Module, evaluation: EvaluationSet, *, by_block: bool) -> int:
    """The largest number of bytes that autograd kept for backward passes at one time, by its own account."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    most = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal most
        storage = tensor.untyped_storage()
        if storage.data_ptr() in own:
            return tensor
        kept[storage.data_ptr()] = storage.nbytes()
        weakref.finalize(storage, kept.pop, storage.data_ptr(), None)
        most = max(most, sum(kept.values()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        map_sensitivity(model, evaluation, by_block=by_block, passes=1)
    return most


def test_block_by_block_takes_the_memory_of_one_block() -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=12, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    evaluation = EvaluationSet("one", (rows(torch.randint(3, 16, (4, 32))),))
    whole, blockwise = (graph_bytes(model, evaluation, by_block=way) for way in (False, True))
    assert blockwise < whole / 6


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_a_layers_cells_add_up_to_noise_on_all_of_it(family: str) -> None:
    """At a small scale, where nothing interacts; no value is disturbed twice, so none may count twice."""
    model, evaluation = build(family), data(family)
    noise = noisescope.RelativeGaussian(0.01)
    checked = correct(map_sensitivity(model, evaluation, passes=4).predict(noise), {})
    bench = Bench(model, evaluation)
    for layer in (0, 1, 2):
        got = bench.run(Point(Selection((layer,)), noise, trials=4)).comparison.kl.value
        assert checked.layer(layer).value == pytest.approx(got, rel=0.1), layer


def test_experts_are_no_sequences_even_if_there_are_as_many() -> None:
    """Two experts, each of which sees all tokens, and batches of two rows: intervals there are over batches."""
    sizes = {"hidden_size": 32, "intermediate_size": 24, "intermediate_size_mlp": 24, "vocab_size": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    model = Llama4ForCausalLM(Llama4TextConfig(**sizes, **heads, num_local_experts=2, pad_token_id=0)).eval()
    found = map_sensitivity(model, data(batches=3, size=2))
    of_experts = {cell for cell, figure in found.relative.items() if figure.n == 3}
    assert of_experts >= {(layer, "silu") for layer in range(2)}
    assert found.relative[0, "rms_norm"].n == 6


def test_batches_of_tensors_will_do() -> None:
    model, batch = build("llama"), tokens("llama", rows=4)
    assert map_sensitivity(model, [batch]).relative == map_sensitivity(model, open_data([batch])).relative
    with pytest.raises(InputError, match="batches: got str"):
        map_sensitivity(model, "some text")
