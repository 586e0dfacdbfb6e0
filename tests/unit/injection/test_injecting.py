"""What `inject` does in use: phases, scales, nesting, generation, autocast, checkpointing, compiled code."""

import pytest
import torch

import noisescope as ns
from families import LAYERS, build, tokens
from noisescope.errors import CompiledModel, ExitOrder, InputError, NothingMatched

NOISE = ns.RelativeGaussian(0.05)
INPUTS = tokens()
CORE = ("linear", "matmul", "bmm")


@pytest.fixture(scope="module")
def model():
    return build("llama")


def logits(model, **options) -> torch.Tensor:
    with torch.no_grad():
        return model(**INPUTS, **options).logits


def grads(model) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_the_screen_of_the_readme(model) -> None:
    with ns.inject(model, NOISE, layers=[1, 2], operators=["softmax"], seed=0) as run:
        noisy = logits(model)
    assert not torch.equal(noisy, logits(model))
    assert run.stats.by_layer == {1: {"forward": 1, "backward": 0}, 2: {"forward": 1, "backward": 0}}
    assert str(run.stats).splitlines()[0].split()[:3] == ["layer", "operator", "phase"]
    assert 0 < run.steps_difference < 1e-6


def test_operators_one_by_one_and_all_together(model) -> None:
    clean, moved, seen = logits(model), {}, {}
    for operators in ("matmul", "softmax", "layernorm", CORE, None):
        with ns.inject(model, NOISE, operators=operators) as run:
            moved[operators] = float((logits(model) - clean).norm())
        seen[operators] = {name: counts["forward"] for name, counts in run.stats.by_operator.items()}
    assert seen["matmul"] == {"matmul": 2 * LAYERS}
    assert seen["softmax"] == {"softmax": LAYERS}
    assert seen["layernorm"] == {"rms_norm": 2 * LAYERS + 1}
    assert len(set(moved.values())) == 5
    assert moved[None] > moved[CORE] > 0


def test_an_empty_selection_injects_nothing_and_says_so(model) -> None:
    clean = logits(model)
    for empty in ({"operators": []}, {"layers": []}, {"modules": []}, {"phases": []}):
        with ns.inject(model, NOISE, **empty) as run:
            assert torch.equal(logits(model), clean)
        assert str(run.stats) == "nothing injected"
        assert run.stats.calls() == 0


def test_module_patterns(model) -> None:
    with ns.inject(model, NOISE, modules="*.mlp") as run:
        logits(model)
    assert run.stats.by_operator == {
        "linear": {"forward": 3 * LAYERS, "backward": 0},
        "silu": {"forward": LAYERS, "backward": 0},
    }
    with ns.inject(model, NOISE, modules=r"re:model\.layers\.1\..*(up|down)_proj") as run:
        logits(model)
    assert run.stats.by_layer == {1: {"forward": 2, "backward": 0}}


def test_scales_per_operator_and_per_layer(model) -> None:
    with ns.inject(
        model, ns.RelativeGaussian(0.02), operator_scales={"linear": 3, "norm": 0}, layer_scales={1: 0.1}
    ) as run:
        logits(model)
    asked = {(row.layer, row.operator): row.scale for row in run.stats.rows}
    assert asked[0, "linear"] == pytest.approx(0.06)
    assert asked[1, "linear"] == pytest.approx(0.3)
    assert asked[1, "silu"] == pytest.approx(0.1)
    assert asked[0, "rms_norm"] == 0
    for row in run.stats.rows:
        assert row.dose == pytest.approx(row.scale, rel=0.2, abs=1e-12)
        assert (row.elements == 0) == (row.scale == 0)


def test_forward_noise_leaves_the_derivative_alone() -> None:
    """d(noisy linear)/dx is the clean weight: a device's error has no derivative."""
    block = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
    model = torch.nn.Sequential(torch.nn.ModuleList([block]))
    model.forward = lambda x: block(x)
    x = torch.randn(2, 4, requires_grad=True)
    with ns.inject(model, ns.RelativeGaussian(0.5), blocks="0") as run:
        y = block(x)
    y.sum().backward()
    assert run.stats.calls() == 1
    assert torch.equal(x.grad, block[0].weight.sum(0).expand(2, 4))


def test_nested_injections_both_act_and_the_inner_can_end_first(model) -> None:
    with ns.inject(model, NOISE, operators="linear") as outer:
        alone = logits(model)
        with ns.inject(model, NOISE, operators="silu") as inner:
            both = logits(model)
        assert not torch.equal(alone, both)
        step_of_outer = outer.step
        logits(model)
    assert inner.stats.by_operator == {"silu": {"forward": LAYERS, "backward": 0}}
    assert outer.stats.calls() == 3 * 22
    assert step_of_outer == 1
    assert outer.step == 2


def test_generation_is_keyed_by_step(model) -> None:
    def generated():
        with ns.inject(model, ns.RelativeGaussian(0.3), seed=3) as run:
            out = model.generate(**INPUTS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        return out, run

    first, run = generated()
    again, _ = generated()
    assert torch.equal(first, again)
    assert run.step == 5, "prefill and five decode steps"
    assert run.stats.calls(operator="softmax") == 6 * LAYERS
    clean = model.generate(**INPUTS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert not torch.equal(first, clean)


def test_steps_of_one_injection_draw_differently(model) -> None:
    with ns.inject(model, NOISE) as run:
        first, second = logits(model), logits(model)
    assert run.step == 1
    assert not torch.equal(first, second)


def test_under_autocast_the_narrow_value_is_disturbed(model) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        clean = logits(model)
        with ns.inject(model, NOISE) as run:
            noisy = logits(model)
        assert torch.equal(logits(model), clean)
    assert noisy.dtype == clean.dtype == torch.bfloat16
    assert not torch.equal(noisy, clean)
    assert run.stats.dose == pytest.approx(0.05, rel=0.05)


def test_attention_is_disturbed_once_whatever_is_selected_beside_it(model) -> None:
    with ns.inject(model, NOISE, operators=["attention", "matmul"]) as run:
        logits(model)
    assert run.stats.by_operator == {
        "attention": {"forward": LAYERS, "backward": 0},
        "matmul": {"forward": LAYERS, "backward": 0},
    }


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bert"])
def test_eager_and_fused_attention_have_the_same_sites(family: str) -> None:
    eager, fused = (ns.survey(build(family, attn=attn)) for attn in ("eager", "sdpa"))
    assert {site.name for site in eager.sites} == {site.name for site in fused.sites}
    assert not eager.in_steps
    assert {site.operator for site in fused.in_steps} == {"matmul", "softmax"}


def test_same_noise_in_eager_and_fused_attention() -> None:
    """Noise on the softmax is a function of its site, so both implementations get the same draw."""
    results = []
    for attn in ("eager", "sdpa"):
        model = build("llama", attn=attn)
        with ns.inject(model, ns.RelativeGaussian(0.2), operators="softmax"):
            results.append(logits(model))
    assert torch.allclose(*results, atol=1e-5)
    assert not torch.allclose(results[0], logits(model), atol=1e-4)


def test_all_operators_move_the_output_more_than_the_core_ones(model) -> None:
    clean = logits(model)

    def distance(operators) -> float:
        found = []
        for seed in range(8):
            with ns.inject(model, NOISE, operators=operators, seed=seed):
                found.append((logits(model) - clean).norm())
        return torch.stack(found).mean().item()

    assert distance(None) > distance(["linear", "matmul", "bmm"])


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_equal_gradients(reentrant: bool) -> None:
    model = build("llama").train()
    model.enable_input_require_grads()
    with ns.inject(model, NOISE, phases="both") as plain:
        expected = grads(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with ns.inject(model, NOISE, phases="both") as checkpointed:
        found = grads(model)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    counts = [run.stats.by_layer[1] for run in (plain, checkpointed)]
    assert counts[0] == counts[1], "what is computed again is not counted again"


def test_hooks_that_replace_outputs_see_the_disturbed_value(model) -> None:
    seen = []
    handle = model.model.norm.register_forward_hook(lambda _m, _a, out: seen.append(out.clone()))
    logits(model)
    with ns.inject(model, NOISE, layers="final_norm"):
        logits(model)
    handle.remove()
    assert not torch.equal(*seen)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_is_refused_with_the_reason(backend: str) -> None:
    model = build("llama")
    clean = logits(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    with pytest.raises(CompiledModel, match="is compiled, noise cannot reach inside"), ns.inject(compiled, NOISE):
        pass
    with pytest.raises(CompiledModel), torch.no_grad(), ns.inject(model, NOISE):
        compiled(**INPUTS)
    function = torch.compile(lambda ids: model(ids).logits, backend=backend)
    with pytest.raises(CompiledModel), torch.no_grad(), ns.inject(model, NOISE):
        function(INPUTS["input_ids"])
    assert torch.equal(logits(model), clean)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forced_eager_a_compiled_model_is_injected_exactly_once(backend: str) -> None:
    model = build("llama")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    with torch.compiler.set_stance("force_eager"), ns.inject(compiled, NOISE, operators="linear") as run:
        found = logits(compiled)
    assert run.stats.calls() == 22
    with ns.inject(model, NOISE, operators="linear"):
        assert torch.equal(logits(model), found)
    in_place = build("llama")
    in_place.compile(backend=backend)
    with pytest.raises(CompiledModel), ns.inject(in_place, NOISE):
        pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"operators": ["sofmax"]}, InputError, 'unknown operator "sofmax", did you mean "softmax"'),
        ({"layers": [99]}, NothingMatched, "layers: 99 is out of range, the model has 0 to 2"),
        ({"layers": "haed"}, InputError, 'unknown layer "haed", did you mean "head"'),
        ({"modules": "*.nope"}, NothingMatched, "matches no module"),
        ({"phases": "sideways"}, InputError, 'unknown phase "sideways"'),
        ({"operator_scales": {"linear": -1}}, InputError, r"operator_scales\['linear'\]: got -1.0"),
        ({"operator_scales": {"linaer": 1}}, InputError, 'unknown operator "linaer", did you mean "linear"'),
        ({"operators": "softmax", "operator_scales": {"linear": 2}}, InputError, "not one of the operators"),
        ({"layers": "0-1", "layer_scales": {2: 0.1}}, InputError, "not one of the layers"),
        ({"layer_scales": {0: float("nan")}}, InputError, r"layer_scales\[0\]: got nan"),
        ({"layer_scales": {99: 0.1}}, NothingMatched, "99 is out of range"),
    ],
)
def test_bad_input_is_refused_on_entry_and_leaves_the_model_alone(model, options, error, message) -> None:
    clean = logits(model)
    with pytest.raises(error, match=message) as caught, ns.inject(model, NOISE, **options):
        raise AssertionError("not reached")
    assert "\n" not in str(caught.value)
    assert torch.equal(logits(model), clean)


def test_noise_must_be_a_noise(model) -> None:
    with pytest.raises(InputError, match="expected a noise model such as RelativeGaussian"):
        ns.inject(model, 0.05)


def test_bit_flips_of_a_dtype_without_them_are_refused() -> None:
    model = build("llama").double()
    clean = logits(model)
    with pytest.raises(InputError, match="cannot flip bits of float64"), ns.inject(model, ns.BitFlip(0.01)):
        logits(model)
    assert torch.equal(logits(model), clean)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
@pytest.mark.parametrize("where", ["model.layers.1.mlp", "model.layers.2", "lm_head"])
def test_what_follows_a_caught_interrupt_is_not_the_models(model, error, where) -> None:
    def interrupt(*_):
        raise error

    weight = model.lm_head.weight.detach()
    clean, expected = logits(model), torch.nn.functional.linear(weight, weight)
    with ns.inject(model, NOISE, operators="linear") as run:
        noisy = logits(model)
        handle = model.get_submodule(where).register_forward_hook(interrupt)
        with pytest.raises(error):
            logits(model)
        handle.remove()
        calls = run.stats.calls()
        assert torch.equal(torch.nn.functional.linear(weight, weight), expected)
        assert run.stats.calls() == calls
        assert not torch.equal(logits(model), noisy), "the third pass is keyed as the third"
        assert run.step == 2
    assert torch.equal(logits(model), clean)


def checkpointed_loss(model, *, reentrant: bool) -> torch.Tensor:
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    return model(**INPUTS, labels=INPUTS["input_ids"], use_cache=False).loss


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_backward_after_the_block_is_refused(reentrant) -> None:
    model = build("llama")
    with ns.inject(model, NOISE):
        loss = checkpointed_loss(model, reentrant=reentrant)
    with pytest.raises((ExitOrder, torch.utils.checkpoint.CheckpointError), match=r"inside the|recomputation"):
        loss.backward()


@pytest.mark.parametrize(
    "quiet",
    [{"phases": "backward"}, {"operators": []}, {"layers": 1, "layer_scales": {1: 0}}],
    ids=str,
)
def test_a_checkpointed_backward_is_not_refused_where_nothing_was_disturbed(quiet) -> None:
    model = build("llama")
    with ns.inject(model, NOISE, **quiet):
        checkpointed_loss(model, reentrant=True).backward()
        loss = checkpointed_loss(model, reentrant=True)
    loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_interrupt_while_checkpointing_recomputes_does_not_double_what_follows(reentrant) -> None:
    model = build("llama")
    weight = model.lm_head.weight.detach()
    clean = torch.nn.functional.linear(weight, weight)

    def interrupt(*_):
        raise KeyboardInterrupt

    with ns.inject(model, NOISE, operators="linear") as run:
        loss = checkpointed_loss(model, reentrant=reentrant)
        once = run.stats.calls()
        handle = model.model.layers[1].mlp.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
        handle.remove()
        assert torch.equal(torch.nn.functional.linear(weight, weight), clean)
        checkpointed_loss(model, reentrant=reentrant).backward()
        assert run.stats.calls() == 2 * once
