"""For each family, each operator: the injected sites are the ones counted by an independent observer of the model."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

import noisescope as ns
from families import DECODERS, FAMILIES, LAYERS, build, tokens
from noisescope.errors import NothingMatched
from noisescope.operators import OPERATORS
from noisescope.sites import Layout

NOISE = ns.RelativeGaussian(0.05)


class IndependentCount(TorchFunctionMode):
    """Counts operators with its own table and per-block hooks, sharing nothing with the engine."""

    def __init__(self, model: nn.Module, blocks: list[nn.Module]) -> None:
        self.counts: Counter[tuple[object, str]] = Counter()
        self.block: object = None
        self.module: nn.Module | None = None
        self.shape: torch.Size | None = None
        self.handles = []
        for module in model.modules():
            self.handles.append(module.register_forward_pre_hook(self._start(module, blocks), with_kwargs=True))
            self.handles.append(module.register_forward_hook(self._end(module, blocks)))
        self.stack: list[nn.Module] = []

    def _start(self, module, blocks):
        def hook(_module, args, kwargs):
            self.stack.append(module)
            if any(module is block for block in blocks):
                self.block = next(i for i, block in enumerate(blocks) if block is module)
                self.shape = (args[0] if args else kwargs["hidden_states"]).shape

        return hook

    def _end(self, module, blocks):
        def hook(_module, args, output):
            name = type(module).__name__
            if "RMSNorm" in name or name == "T5LayerNorm":
                self.counts[self.block, "rms_norm"] += 1
            elif name in ("LayerNorm", "OlmoLayerNorm", "CohereLayerNorm"):
                self.counts[self.block, "layer_norm"] += 1
            elif name in ("NewGELUActivation", "GELUActivation", "GELUTanh", "BloomGelu"):
                self.counts[self.block, "gelu"] += 1
            self.stack.pop()
            if any(module is block for block in blocks):
                self.block = None

        return hook

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, at = getattr(func, "__name__", ""), self.block
        owner = self.stack[-1] if self.stack else None
        if name in ("linear", "_grouped_mm", "grouped_mm") or (
            (isinstance(owner, Conv1D) or type(owner).__name__ == "FalconLinear")
            and name in ("addmm", "matmul", "__matmul__")
        ):
            self.counts[at, "linear"] += 1
        elif name in ("matmul", "__matmul__"):
            self.counts[at, "matmul"] += 1
        elif name in ("bmm", "baddbmm"):
            self.counts[at, "bmm"] += 1
        elif name in ("softmax", "silu", "embedding"):
            self.counts[at, name] += 1
        elif name == "scaled_dot_product_attention":
            self.counts[at, "attention"] += 1
            self.counts[at, "matmul"] += 2
            self.counts[at, "softmax"] += 1
        elif (
            name in ("add", "__add__", "add_", "__iadd__")
            and at is not None
            and type(owner).__name__.endswith(("Layer", "Block"))
            and all(
                isinstance(a, Tensor) and a.numel() == self.shape.numel() and a.shape[-1] == self.shape[-1]
                for a in args
            )
        ):
            self.counts[at, "residual"] += 1
        return func(*args, **(kwargs or {}))


def count_independently(model: nn.Module, inputs: dict[str, Tensor], blocks: list[nn.Module]) -> Counter:
    counting = IndependentCount(model, blocks)
    with counting, torch.no_grad():
        model(**inputs)
    for handle in counting.handles:
        handle.remove()
    if model.config.model_type in ("bloom", "gptj"):  # eager only: the second product is the attention's value
        for (at, operator), n in list(counting.counts.items()):
            if operator == "softmax":
                counting.counts[at, "attention"] += n
    return counting.counts


@pytest.mark.parametrize("family", FAMILIES)
def test_injected_sites_are_those_counted_independently(family: str) -> None:
    model, inputs = build(family), tokens(family)
    blocks = list(Layout.of(model).blocks)
    expected = count_independently(model, inputs, blocks)
    for operator in OPERATORS:
        wanted = {at: n for (at, name), n in expected.items() if name == operator}
        run = ns.inject(model, NOISE, operators=[operator])
        if not wanted:
            with pytest.raises(NothingMatched), torch.no_grad(), run:
                model(**inputs)
            continue
        with torch.no_grad(), run:
            model(**inputs)
        found: Counter = Counter()
        for row in run.stats.rows:
            found[row.layer if isinstance(row.layer, int) else None] += row.calls
        assert found == Counter(wanted), operator


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_changes_nothing_before_its_block_and_something_after(family: str) -> None:
    model, inputs = build(family), tokens(family)
    layout = Layout.of(model)
    clean = block_outputs(model, layout.blocks, inputs)
    for layer in range(len(layout.blocks)):
        with ns.inject(model, NOISE, layers=[layer]) as run:
            noisy = block_outputs(model, layout.blocks, inputs)
        assert set(run.stats.by_layer) == {layer}
        same = [torch.equal(a, b) for a, b in zip(clean, noisy, strict=True)]
        assert all(same[:layer])
        assert not same[layer]
        if model.config.is_encoder_decoder is not True:
            assert not any(same[layer:])
    assert all(torch.equal(a, b) for a, b in zip(clean, block_outputs(model, layout.blocks, inputs), strict=True))


def block_outputs(model: nn.Module, blocks: tuple[nn.Module, ...], inputs: dict[str, Tensor]) -> list[Tensor]:
    outputs: list[Tensor] = []

    def keep(_module, _args, output):
        outputs.append((output[0] if isinstance(output, tuple) else output).clone())

    handles = [block.register_forward_hook(keep) for block in blocks]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return outputs


@pytest.mark.parametrize("family", DECODERS)
def test_head_and_embedding_are_booked_on_themselves(family: str) -> None:
    model, inputs = build(family), tokens(family)
    with ns.inject(model, NOISE, operators=["linear", "embedding", "norm"]) as run, torch.no_grad():
        model(**inputs)
    counts = {(row.layer, row.operator): row.calls for row in run.stats.rows}
    assert counts["head", "linear"] == 1
    assert counts["embed", "embedding"] >= 1
    assert sum(n for (layer, operator), n in counts.items() if layer == "final_norm" and "norm" in operator) == 1
    linears = [counts[layer, "linear"] for layer in range(LAYERS)]
    assert len(set(linears)) == 1, "the last layer has no more than the others"


@pytest.mark.parametrize("family", DECODERS)
def test_backward_noise_on_a_block_leaves_later_gradients_alone(family: str) -> None:
    model, inputs = build(family), tokens(family)
    clean = gradients(model, inputs)
    layout = Layout.of(model)
    for layer in range(LAYERS):
        with ns.inject(model, NOISE, layers=[layer], phases="backward") as run:
            noisy = gradients(model, inputs)
        assert set(run.stats.by_layer) == {layer}
        assert run.stats.calls(phase="forward") == 0
        for name, grad in clean.items():
            at = layer_of(name, layout)
            if isinstance(at, int) and grad.any():
                assert torch.equal(grad, noisy[name]) == (at > layer), (layer, name)
        head = [name for name in clean if name.startswith("lm_head") and not model.config.tie_word_embeddings]
        assert all(torch.equal(clean[name], noisy[name]) for name in head)


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(**inputs).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), inputs["input_ids"][:, 1:].flatten()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def layer_of(parameter: str, layout: Layout) -> int | None:
    for index, block in enumerate(layout.blocks):
        if parameter.startswith(layout.paths[block] + "."):
            return index
    return None
