"""Capturing on models of many families: what is kept is what was computed, and the model does not notice."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.testing import assert_close

import noisescope as ns
from families import DECODERS, FAMILIES, LAYERS, build, tokens
from noisescope.capturing import ChannelStatistics, capture
from noisescope.capturing.channels import ChannelTally
from noisescope.errors import BudgetExceeded, ExitOrder, HiddenOperator, InputError, NothingMatched
from noisescope.sites import Layout

DOWN = "model.layers.1.mlp.down_proj"
SITE = f"{DOWN}.linear.0.forward"


def hooked(model, paths, batch):
    """Inputs and outputs of modules by ordinary hooks, sharing nothing with the engine."""
    seen, handles = {}, []
    for path in paths:

        def keep(module, args, output, path=path):
            seen[path] = (args[0].detach().clone(), output.detach().clone())

        handles.append(model.get_submodule(path).register_forward_hook(keep))
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return seen


# --- what is kept -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_stored_tensors_and_statistics_are_those_of_an_ordinary_hook(family):
    model, batch = build(family), tokens(family)
    with capture(model, inputs=True, outputs=True) as captured, torch.no_grad():
        model(**batch)
    linears = {site.module: name for name, site in captured.sites.items() if not site.module.endswith("experts")}
    seen = hooked(model, linears, batch)
    assert {site.layer for site in captured.sites.values()} == set(range(len(Layout.of(model).blocks)))
    for path, name in linears.items():
        given, value = seen[path]
        assert captured.inputs[name][0].equal(given.reshape(captured.inputs[name][0].shape))
        assert captured.outputs[name][0].equal(value.reshape(captured.outputs[name][0].shape))
        found = captured.statistics[name]
        assert found.max_abs.equal(value.reshape(-1, value.shape[-1]).abs().amax(0).double())
        assert found.tokens == value.shape[:-1].numel()


def test_statistics_stream_over_forward_passes():
    model = build("llama")
    with capture(model, modules=DOWN, outputs=True) as captured, torch.no_grad():
        for seed in range(4):
            model(**tokens(rows=3, length=5 + seed, seed=seed))
    value = torch.cat([output.flatten(0, 1) for output in captured.outputs[SITE]]).double()
    found = captured.statistics[SITE]
    assert isinstance(found, ChannelStatistics)
    assert captured.steps == 4
    assert found.tokens == len(value) == 3 * (5 + 6 + 7 + 8)
    assert_close(found.mean, value.mean(0))
    assert_close(found.std, value.std(0, correction=0))


def test_a_capture_may_be_opened_again_and_goes_on():
    model = build("llama")
    captured = capture(model)
    for seed in range(2):
        with captured:
            model(**tokens(seed=seed))
    assert captured.statistics[SITE].tokens == 48


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"layers": 2}, {(2, "linear")}),
        ({"layers": "head"}, {("head", "linear")}),
        ({"layers": [0, "final_norm"]}, {(0, "linear"), ("final_norm", "rms_norm")}),
        ({"operators": "silu", "layers": "0-1"}, {(0, "silu"), (1, "silu")}),
        ({"operators": ["norm"], "layers": [1]}, {(1, "rms_norm")}),
        ({"modules": "*.mlp", "layers": 1}, {(1, "linear"), (1, "silu")}),
        ({"modules": "re:.*q_proj"}, {(layer, "linear") for layer in range(LAYERS)}),
        ({"operators": "embedding"}, {("embed", "embedding")}),
    ],
)
def test_selections(selection, expected):
    model = build("llama")
    with capture(model, **selection, inputs=True) as captured:
        model(**tokens())
    assert {(site.layer, site.operator) for site in captured.sites.values()} == expected
    assert captured.inputs.keys() == captured.sites.keys() == captured.statistics.keys()


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_inside_attention(attn):
    model, batch = build("llama", attn=attn), tokens(rows=1, length=6)
    with capture(model, operators=["softmax", "attention", "matmul"], layers=0, inputs=True, outputs=True) as captured:
        model(**batch)
    names = {name.removeprefix("model.layers.0.self_attn.") for name in captured.sites}
    assert names == {"matmul.0.forward", "softmax.0.forward", "attention.0.forward", "matmul.1.forward"}
    at = "model.layers.0.self_attn."
    assert captured.outputs[at + "attention.0.forward"][0].equal(captured.outputs[at + "matmul.1.forward"][0])
    assert captured.inputs[at + "matmul.1.forward"][0].equal(captured.outputs[at + "softmax.0.forward"][0])
    assert captured.statistics[at + "softmax.0.forward"].channels == 6


@pytest.mark.parametrize("family", ["bloom", "gpt2"])
def test_the_input_of_a_sum_with_a_product_is_the_factor(family):
    model, batch = build(family), tokens()
    with capture(model, operators=["bmm" if family == "bloom" else "linear"], layers=0, inputs=True) as captured:
        model(**batch)
    first = next(iter(captured.inputs.values()))[0]
    assert first.shape[-1] == (8 if family == "bloom" else 32)
    assert first.ndim > 1


def test_generation_counts_every_step_and_wider_attention():
    model = build("llama", attn="eager")
    with capture(model, operators=["linear", "softmax"], layers=1) as captured, torch.no_grad():
        model.generate(**tokens(rows=2, length=4), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert captured.steps == 5
    assert captured.statistics[SITE].tokens == 2 * (4 + 4)
    softmax = captured.statistics["model.layers.1.self_attn.softmax.0.forward"]
    assert softmax.channels == 8
    assert softmax.count.tolist() == [2 * 4 * (4 + 4)] * 4 + [2 * 4 * rows for rows in (4, 3, 2, 1)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_blocks_are_not_counted_twice(reentrant):
    model = build("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model.enable_input_require_grads()
    with capture(model, inputs=True, outputs=True) as captured:
        model(**tokens(), labels=tokens()["input_ids"]).loss.backward()
    assert {found.tokens for found in captured.statistics.values()} == {24}
    assert {len(stored) for stored in (*captured.inputs.values(), *captured.outputs.values())} == {1}


def test_autocast_and_inference_mode():
    model = build("llama")
    with capture(model, inputs=True, outputs=True) as captured:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(**tokens())
        model(**tokens())
    low, full = captured.outputs[SITE]
    assert (low.dtype, full.dtype) == (torch.bfloat16, torch.float32)
    assert not low.is_inference()
    value = torch.cat([low.flatten(0, 1).double(), full.detach().flatten(0, 1).double()])
    assert_close(captured.statistics[SITE].std, value.std(0, correction=0))


def test_stored_tensors_are_copies_in_the_dtype_of_the_model():
    model = build("llama").to(torch.bfloat16)
    with capture(model, inputs=True, outputs=True) as captured:
        model(**tokens())
    stored = captured.outputs[SITE][0]
    assert stored.dtype == captured.inputs[SITE][0].dtype == torch.bfloat16
    assert not stored.requires_grad
    assert captured.statistics[SITE].mean.dtype == torch.float64


# --- the model does not notice ----------------------------------------------------------------------------------


def run(model, batch, context):
    """Loss, logits and gradients of one training step."""
    model.zero_grad()
    with context:
        output = model(**batch, labels=batch["input_ids"])
        output.loss.backward()
    return [output.loss, output.logits, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_logits_and_gradients_are_bit_identical(family, dtype):
    model, batch = build(family).to(dtype), tokens(family)
    clean = run(model, batch, torch.enable_grad())
    everything = capture(
        model, operators=["linear", "norm", "embedding", "residual", "silu", "gelu"], inputs=True, outputs=True
    )
    for captured in (capture(model), everything):
        watched = run(model, batch, captured)
        assert all((a is b is None) or a.equal(b) for a, b in zip(clean, watched, strict=True))
        assert captured.sites


def test_nothing_stays_on_the_model_or_in_torch():
    model, fired = build("llama"), []
    handle = model.model.layers[0].register_forward_hook(lambda *_: fired.append(1))
    hooks = {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    with capture(model, inputs=True):
        model(**tokens())
        inside, state = copy.deepcopy(model), model.state_dict()
        assert hooks == {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
    inside(**tokens())
    assert state.keys() == weights.keys()
    assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
    assert torch.get_rng_state().equal(random)
    assert len(fired) == 2  # the user's hook, copied too
    handle.remove()
    assert_no_trace()


def assert_no_trace():
    assert not torch_module._global_forward_hooks
    assert not torch_module._global_forward_pre_hooks
    assert not _get_current_function_mode_stack()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_at_any_value_leaves_no_trace(error, monkeypatch):
    model, batch = build("llama"), tokens()
    clean = model(**batch).logits
    fold = ChannelTally.fold
    for failing in range(3 * LAYERS + 1):
        calls = iter(range(1000))

        def fail(tally, value, scratch, calls=calls, failing=failing):
            if next(calls) == failing:
                raise error
            fold(tally, value, scratch)

        monkeypatch.setattr(ChannelTally, "fold", fail)
        if failing < 3 * LAYERS:
            with pytest.raises(error), capture(model):
                model(**batch)
        else:
            with capture(model):
                model(**batch)
        assert_no_trace()
        assert model(**batch).logits.equal(clean)


def test_only_the_entering_thread_is_captured():
    model = build("llama")
    with capture(model) as captured:
        others = [threading.Thread(target=lambda: model(**tokens())) for _ in range(4)]
        for other in others:
            other.start()
        for _ in range(5):
            model(**tokens())
        for other in others:
            other.join()
    assert captured.statistics[SITE].tokens == 5 * 24


def test_capture_inside_injection_sees_the_noise_and_around_it_does_not():
    model, batch = build("llama"), tokens()
    noise = ns.RelativeGaussian(0.1)

    def injection():
        return ns.inject(model, noise, modules=DOWN)

    with capture(model, outputs=True) as clean, torch.no_grad():
        model(**batch)
    with injection(), capture(model, outputs=True) as inner, torch.no_grad():
        noisy = model(**batch).logits
    with capture(model, outputs=True) as outer, injection(), torch.no_grad():
        assert model(**batch).logits.equal(noisy)
    with injection() as alone, torch.no_grad():
        assert model(**batch).logits.equal(noisy)
    assert alone.stats.calls() == 1
    assert not inner.outputs[SITE][0].equal(clean.outputs[SITE][0])
    assert outer.outputs[SITE][0].equal(clean.outputs[SITE][0])


# --- refusals ---------------------------------------------------------------------------------------------------


def test_what_cannot_match_is_refused_before_the_model_runs():
    model = build("llama")
    for selection in ({"layers": 17}, {"modules": "*.no_such"}, {"modules": [DOWN, "nothing"]}):
        with pytest.raises(NothingMatched):
            capture(model, **selection)
    for selection in ({"operators": "sofmax"}, {"layers": "x"}):
        with pytest.raises(InputError):
            capture(model, **selection)


def test_what_matched_nothing_is_refused_at_the_end():
    model = build("llama")
    with pytest.raises(NothingMatched, match="layers head, operators softmax: nothing matched in 1 forward passes"):  # noqa: SIM117
        with capture(model, layers="head", operators="softmax"):
            model(**tokens())
    with capture(model, operators="gelu"):
        pass  # no forward pass, nothing to say
    with capture(model, operators=[]) as captured:
        model(**tokens())
    assert not captured.sites


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def test_a_fused_kernel_is_named():
    model = Encoder().eval()
    with pytest.raises(HiddenOperator, match="softmax runs inside the fused kernel"):  # noqa: SIM117
        with capture(model, operators="softmax"), torch.no_grad():
            model(torch.randn(1, 3, 8))


def test_blocks_without_known_projections_ask_for_names():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    with pytest.raises(NothingMatched, match=r'no attention output.*modules="'):
        capture(model)
    with capture(model, operators="linear") as captured:
        model(torch.randn(2, 4))
    assert len(captured.sites) == 2


def test_asking_for_nothing_is_an_error():
    with pytest.raises(InputError, match="all off"):
        capture(build("llama"), statistics=False)
    for budget in (-1, 1.5, True, None):
        with pytest.raises(InputError, match="budget_bytes: got"):
            capture(build("llama"), budget_bytes=budget)


class ByKeyword(nn.Module):
    """A block whose hand-written norm takes its input by keyword, where no hook can see it."""

    class OwnRMSNorm(nn.Module):
        def forward(self, hidden):
            return hidden * hidden.square().mean(-1, keepdim=True).rsqrt()

    def __init__(self):
        super().__init__()
        self.norm = self.OwnRMSNorm()

    def forward(self, hidden):
        return self.norm(hidden=hidden)


def test_an_input_that_cannot_be_seen_is_not_passed_over():
    model = nn.Sequential(ByKeyword(), ByKeyword())
    with pytest.raises(NothingMatched, match=r"input of 0\.norm\.rms_norm\.0\.forward"):  # noqa: SIM117
        with capture(model, operators="norm", inputs=True):
            model(torch.randn(2, 64))


def test_order_of_closing():
    model = build("llama")
    captured = capture(model)
    with captured, pytest.raises(ExitOrder):
        captured.__enter__()
    assert_no_trace()


# --- reading ----------------------------------------------------------------------------------------------------


def test_the_table():
    model = build("llama")
    captured = capture(model, layers=[0, 1], inputs=True)
    assert str(captured) == repr(captured) == "<Capture: 0 sites, 0 forward passes, 0 stored tensors, 0.0 MiB>"
    with captured:
        model(**tokens())
    head, *lines = str(captured).splitlines()
    assert head.split() == ["site", "channels", "tokens", "max", "median", "top", "channel"]
    assert [line.split()[0] for line in lines] == list(captured.sites)
    found = captured.statistics[SITE]
    assert lines[-1].split()[1:3] == ["32", "24"]
    assert float(lines[-1].split()[3]) == pytest.approx(float(found.max_abs.max()), rel=1e-3)
    assert lines[-1].split()[-1] == str(int(found.max_abs.argmax()))
    assert repr(captured).startswith("<Capture: 6 sites, 1 forward passes, 6 stored tensors, ")


def test_the_table_shows_values_that_are_not_finite():
    model = build("llama")
    with torch.no_grad():
        model.get_submodule(DOWN).weight[3, 0] = torch.nan
    with capture(model, layers=1) as captured:
        model(**tokens())
    assert "not finite" in str(captured).splitlines()[0]
    assert captured.statistics[SITE].non_finite == 24
    assert captured.statistics[SITE].max_abs.isnan().sum() == 1


def test_budget_message():
    with pytest.raises(BudgetExceeded) as refusal, capture(build("llama"), budget_bytes=1000):
        pass
    assert str(refusal.value) == (
        "capture: statistics of 9 sites needs 446 208 bytes in all, budget_bytes allows 1 000 bytes; select fewer "
        "layers or modules, store less, capture fewer tokens at a time, or raise budget_bytes"
    )
