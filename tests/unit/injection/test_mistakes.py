"""The mistakes of an earlier attempt at this instrument, each one a test."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import noisescope as ns
from families import LAYERS, build, tokens
from noisescope.errors import NothingMatched
from noisescope.sites import Layout

NOISE = ns.RelativeGaussian(0.05)
INPUTS = tokens()


def backward(model: nn.Module) -> None:
    model.zero_grad()
    model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()


def test_the_output_head_is_not_part_of_the_last_layer() -> None:
    """The layer number was set by a pre-hook and never cleared: 'last-layer dominance' was that bug."""
    model = build("llama")
    with ns.inject(model, NOISE, layers=[LAYERS - 1], operators="linear") as last, torch.no_grad():
        model(**INPUTS)
    assert last.stats.calls() == 7
    with ns.inject(model, NOISE, layers="head") as head, torch.no_grad():
        model(**INPUTS)
    assert head.stats.by_layer == {"head": {"forward": 1, "backward": 0}}


def test_backward_noise_is_booked_where_the_gradient_was_made() -> None:
    """Backward noise used the stale layer number: all of it was booked on the last layer."""
    model = build("llama")
    with ns.inject(model, NOISE, phases="backward") as run:
        backward(model)
    per_layer = [run.stats.by_layer[layer]["backward"] for layer in range(LAYERS)]
    assert min(per_layer) == max(per_layer) > 0


@pytest.mark.parametrize("layer", range(LAYERS))
def test_any_layer_can_be_selected_for_backward_noise(layer: int) -> None:
    """Selecting another layer than the last gave no backward noise at all."""
    model = build("gpt2")
    with ns.inject(model, NOISE, layers=[layer], phases="backward") as run:
        backward(model)
    assert set(run.stats.by_layer) == {layer}


def test_matmul_does_not_mean_linears_too() -> None:
    model = build("llama", attn="eager")
    with ns.inject(model, NOISE, operators="matmul") as run, torch.no_grad():
        model(**INPUTS)
    assert run.stats.calls() == 2 * LAYERS


def test_linear_alone_has_backward_noise() -> None:
    model = build("llama")
    with ns.inject(model, NOISE, operators="linear", phases="backward") as run:
        backward(model)
    assert run.stats.calls(operator="linear", phase="backward") == 2 * 22, "input and weight of each"


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_without_bias_survives_backward(bias: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8, bias=bias)

        def forward(self, x):
            return self.norm(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block()])

        def forward(self, x):
            return self.blocks[0](x)

    model = Model()
    with ns.inject(model, NOISE, operators="layer_norm", phases="both") as run:
        model(torch.randn(2, 3, 8, requires_grad=True)).square().sum().backward()
    assert run.stats.by_operator == {"layer_norm": {"forward": 1, "backward": 3 if bias else 2}}


def test_the_weight_of_a_hand_written_norm_gets_its_gradient_noise() -> None:
    model = build("llama")
    backward(model)
    clean = model.model.layers[2].post_attention_layernorm.weight.grad.clone()
    with ns.inject(model, NOISE, modules="model.layers.2.post_attention_layernorm", phases="backward") as run:
        backward(model)
    assert not torch.equal(model.model.layers[2].post_attention_layernorm.weight.grad, clean)
    assert run.stats.calls() == 2, "its input and its weight"


def test_no_operator_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two `.item()` per operator: here nothing is read back before the block ends."""
    model = build("llama")
    monkeypatch.setattr(torch.Tensor, "is_cpu", False, raising=False)  # where there is nothing to wait for
    read = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "nonzero"):
        original = getattr(torch.Tensor, name)

        def watched(self, *args, _original=original, _name=name, **kwargs):
            read.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, watched)
    with torch.no_grad():
        model(**INPUTS)
        of_the_model_itself = len(read)
        read.clear()
        with ns.inject(model, NOISE):
            read.clear()
            model(**INPUTS)
            during = len(read)
    assert during <= of_the_model_itself, read


def test_counters_can_be_read_while_running() -> None:
    model = build("llama")
    with ns.inject(model, NOISE, operators="silu") as run, torch.no_grad():
        model(**INPUTS)
        assert run.stats.calls() == LAYERS
        model(**INPUTS)
        assert run.stats.calls() == 2 * LAYERS
        run.stats.reset()
        model(**INPUTS)
        assert run.stats.calls() == LAYERS


def test_nothing_outside_the_model_is_disturbed() -> None:
    model = build("llama")
    a = torch.randn(4, 4)
    expected = a @ a, F.softmax(a, dim=-1)
    with ns.inject(model, NOISE) as run, torch.no_grad():
        model(**INPUTS)
        calls = run.stats.calls()
        assert torch.equal(a @ a, expected[0])
        assert torch.equal(F.softmax(a, dim=-1), expected[1])
    assert run.stats.calls() == calls


def test_an_exception_in_a_block_does_not_leave_its_number_behind() -> None:
    model = build("llama")

    def fail(*_):
        raise RuntimeError("broken on purpose")

    with ns.inject(model, NOISE, layers=[1]) as run, torch.no_grad():
        handle = model.model.layers[1].mlp.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="broken on purpose"):
            model(**INPUTS)
        handle.remove()
        assert run.layer is None
        run.stats.reset()
        model(**INPUTS)
    assert set(run.stats.by_layer) == {1}


def test_an_interrupt_in_a_block_does_not_leave_its_number_behind() -> None:
    """Always-called hooks are not called for KeyboardInterrupt: the next forward starts afresh all the same."""
    model = build("llama")

    def interrupt(*_):
        raise KeyboardInterrupt

    with ns.inject(model, NOISE) as run, torch.no_grad():
        handle = model.model.layers[1].mlp.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(**INPUTS)
        handle.remove()
        run.stats.reset()
        model(**INPUTS)
    assert run.stats.by_layer["head"] == {"forward": 1, "backward": 0}
    assert run.stats.by_layer[1] == run.stats.by_layer[2]


def test_a_copied_layout_is_not_shared_between_models() -> None:
    one, two = build("llama"), build("llama")
    with pytest.raises(NothingMatched, match="did not run inside"), ns.inject(one, NOISE) as run, torch.no_grad():
        clean = two(**INPUTS).logits
    assert run.stats.calls() == 0
    assert torch.equal(clean, build("llama")(**INPUTS).logits)
    assert Layout.of(one).blocks != Layout.of(two).blocks
