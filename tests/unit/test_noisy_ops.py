"""The functional interface: the documented names do what they say, on this thread, and leave nothing behind."""

import copy
import gc
import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_hooks
from torch.overrides import _get_current_function_mode_stack as mode_stack

import noisescope as ns
from families import LAYERS, build, tokens
from noisescope import noisy_ops
from noisescope.errors import InputError, ModelError
from noisescope.noisy_ops import environment
from noisescope.operators import OPERATORS
from noisescope.specs import OUTSIDE

CORE = ("linear", "matmul", "bmm")
ZERO = {"forward": 0, "backward": 0}


def traces() -> tuple[int, int, int]:
    """Everything that noise leaves around while it is on."""
    hooks = torch_hooks._global_forward_hooks, torch_hooks._global_forward_pre_hooks
    return len(mode_stack()), *map(len, hooks)


@pytest.fixture(autouse=True)
def _as_found():
    before = traces()
    yield
    noisy_ops.disable_noisy_ops()
    for set_back in (
        noisy_ops.set_selective_layers,
        noisy_ops.set_selective_operators,
        noisy_ops.set_operator_noise_scales,
        noisy_ops.set_per_layer_scales,
        noisy_ops.set_phase,
    ):
        set_back(None)
    noisy_ops.set_noise_phases(True, True)
    noisy_ops.reset_injection_stats()
    assert traces() == before


@pytest.fixture(scope="module")
def llama():
    return build("llama")


@pytest.fixture
def batch():
    return tokens()


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def train(model, batch):
    """Gradients of every parameter."""
    model.zero_grad()
    model(**batch, labels=batch["input_ids"]).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def on_new_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def touched(stats):
    return {name for name, counts in stats.items() if any(counts.values())}


# --- the example of the documents ---------------------------------------------------------------------------------


def test_operators_one_by_one_have_effects_and_statistics_of_their_own(llama, batch):
    clean, moved, counted = logits(llama, batch), {}, {}
    for operator in ["matmul", "softmax", "layer_norm"]:
        noisy_ops.set_selective_operators([operator])
        noisy_ops.enable_noisy_ops(error_scale=0.05, all_ops_mode=True)
        moved[operator] = float((logits(llama, batch) - clean).norm())
        counted[operator] = noisy_ops.get_operator_injection_stats()
        noisy_ops.disable_noisy_ops()
    assert all(moved.values())
    assert len(set(moved.values())) == 3
    assert touched(counted["matmul"]) == {"matmul"}
    assert touched(counted["softmax"]) == {"softmax"}
    assert touched(counted["layer_norm"]) == {"rms_norm"}
    assert [sum(c["forward"] for c in stats.values()) for stats in counted.values()] == [
        2 * LAYERS,
        LAYERS,
        2 * LAYERS + 1,
    ]


def test_all_operators_move_the_output_more_than_the_core_ones(llama, batch):
    clean, moved = logits(llama, batch), {}
    for all_ops_mode in (False, True):
        with noisy_ops.noisy_ops_context(0.05, all_ops_mode=all_ops_mode):
            moved[all_ops_mode] = float((logits(llama, batch) - clean).norm())
        seen = touched(noisy_ops.get_operator_injection_stats())
        assert seen <= set(CORE) if not all_ops_mode else seen > {"linear", "matmul", "softmax", "silu", "rms_norm"}
    assert moved[True] > 1.2 * moved[False] > 0


# --- on and off ---------------------------------------------------------------------------------------------------


def test_statistics_are_valid_before_anything_was_called():
    def fresh():
        return (
            noisy_ops.get_injection_stats(),
            noisy_ops.get_layer_injection_stats(),
            noisy_ops.get_operator_injection_stats(),
        )

    total, layers, operators = on_new_thread(fresh)
    assert total == {
        "enabled": False,
        "error_scale": 1e-5,
        "error_type": "relative_gaussian",
        "forward": 0,
        "backward": 0,
    }
    assert layers == dict.fromkeys(OUTSIDE, ZERO)
    assert operators == dict.fromkeys(OPERATORS, ZERO)


def test_off_means_bit_identical_and_no_trace(llama, batch):
    clean, gradients, before = logits(llama, batch), train(llama, batch), traces()
    noisy_ops.enable_noisy_ops(0.05, all_ops_mode=True)
    assert traces() != before
    assert not torch.equal(logits(llama, batch), clean)
    assert not torch.equal(train(llama, batch)["lm_head.weight"], gradients["lm_head.weight"])
    noisy_ops.disable_noisy_ops()
    assert traces() == before
    assert torch.equal(logits(llama, batch), clean)
    assert all(torch.equal(gradients[name], again) for name, again in train(llama, batch).items())


def test_models_are_not_touched(llama, batch):
    state = torch.random.get_rng_state()
    llama.model.layers[0].register_forward_hook(mine := (lambda *_: None))
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
        twin = copy.deepcopy(llama)
        keys = set(llama.state_dict())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert mine in llama.model.layers[0]._forward_hooks.values()
    llama.model.layers[0]._forward_hooks.clear()
    assert torch.equal(logits(twin, batch), logits(llama, batch))
    assert keys == set(llama.state_dict())


def test_switching_off_twice_or_without_having_switched_on_is_nothing():
    before = traces()
    noisy_ops.disable_noisy_ops()
    noisy_ops.enable_noisy_ops()
    noisy_ops.disable_noisy_ops()
    noisy_ops.disable_noisy_ops()
    assert traces() == before


def test_switching_on_again_replaces_the_settings(llama, batch):
    noisy_ops.enable_noisy_ops(0.5, "absolute_gaussian", True)
    before = traces()
    logits(llama, batch)
    noisy_ops.enable_noisy_ops(0.01)
    assert traces() == before
    logits(llama, batch)
    stats = noisy_ops.get_injection_stats()
    assert (stats["error_scale"], stats["error_type"]) == (0.01, "relative_gaussian")
    assert touched(noisy_ops.get_operator_injection_stats()) <= set(CORE)


def test_statistics_can_be_read_after_switching_off_and_start_anew_after_switching_on(llama, batch):
    noisy_ops.enable_noisy_ops(0.01)
    logits(llama, batch)
    inside = noisy_ops.get_injection_stats()
    noisy_ops.disable_noisy_ops()
    assert noisy_ops.get_injection_stats() == {**inside, "enabled": False}
    assert noisy_ops.get_layer_injection_stats()[LAYERS - 1]["forward"] > 0
    noisy_ops.enable_noisy_ops(0.01)
    assert noisy_ops.get_injection_stats()["forward"] == 0


def test_models_that_ran_are_not_kept_alive(batch):
    model = build("llama")
    noisy_ops.register_layer_hooks(model)
    noisy_ops.enable_noisy_ops(0.01)
    logits(model, batch)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


# --- contexts -----------------------------------------------------------------------------------------------------


def test_contexts_nest_and_the_outer_settings_come_back(llama, batch):
    noisy_ops.set_selective_layers([0])
    with noisy_ops.noisy_ops_context(0.1):
        outer = logits(llama, batch)
        with noisy_ops.noisy_ops_context(0.2, "uniform", True, seed=3):
            noisy_ops.set_selective_layers([1])
            assert noisy_ops.get_injection_stats()["error_scale"] == 0.2
            assert not torch.equal(logits(llama, batch), outer)
        stats = noisy_ops.get_injection_stats()
        assert (stats["error_scale"], stats["error_type"]) == (0.1, "relative_gaussian")
        assert noisy_ops.get_selective_layers() == [0]
        second = logits(llama, batch)
        layers = noisy_ops.get_layer_injection_stats()
    assert layers[0]["forward"] == 2 * 9
    assert layers[1]["forward"] > 0
    with noisy_ops.noisy_ops_context(0.1):  # the inner block has not moved the outer one's steps
        assert torch.equal(logits(llama, batch), outer)
        assert torch.equal(logits(llama, batch), second)
    assert not noisy_ops.get_injection_stats()["enabled"]


def test_a_context_in_the_middle_of_a_forward_pass_leaves_the_rest_of_it_alone(llama, batch):
    noisy_ops.set_selective_layers([2])
    with noisy_ops.noisy_ops_context(0.1):
        whole = logits(llama, batch)

    def switch(*_):
        with noisy_ops.noisy_ops_context(0.2, seed=1):
            torch.ones(2, 2) @ torch.ones(2, 2)

    handle = llama.model.layers[2].mlp.register_forward_hook(switch)
    with noisy_ops.noisy_ops_context(0.1):
        assert torch.equal(logits(llama, batch), whole)
    handle.remove()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_undoes_every_context(llama, batch, error):
    clean, before = logits(llama, batch), traces()
    noisy_ops.enable_noisy_ops(0.3)

    def explode(*_):
        raise error

    handle = llama.model.layers[1].mlp.register_forward_hook(explode)
    with pytest.raises(error), noisy_ops.noisy_ops_context(0.1), noisy_ops.noisy_ops_context(0.2):
        logits(llama, batch)
    handle.remove()
    assert noisy_ops.get_injection_stats()["error_scale"] == 0.3
    noisy_ops.disable_noisy_ops()
    assert traces() == before
    assert torch.equal(logits(llama, batch), clean)


def test_switching_off_inside_a_context_holds_until_its_end(llama, batch):
    clean = logits(llama, batch)
    with noisy_ops.noisy_ops_context(0.1):
        noisy_ops.disable_noisy_ops()
        assert torch.equal(logits(llama, batch), clean)
    assert not noisy_ops.get_injection_stats()["enabled"]
    noisy_ops.enable_noisy_ops(0.1)
    with noisy_ops.noisy_ops_context(0.2):
        noisy_ops.disable_noisy_ops()
    assert noisy_ops.get_injection_stats()["enabled"]
    assert not torch.equal(logits(llama, batch), clean)


def test_a_closed_generator_undoes_its_context(llama, batch):
    def generate():
        with noisy_ops.noisy_ops_context(0.1):
            yield logits(llama, batch)

    before, running = traces(), generate()
    next(running)
    running.close()
    assert traces() == before


def test_refused_arguments_change_nothing():
    noisy_ops.enable_noisy_ops(0.3)
    for wrong in ({"error_scale": -1}, {"error_scale": "much"}, {"error_type": "gausian"}, {"seed": 0.5}):
        with pytest.raises(InputError), noisy_ops.noisy_ops_context(**wrong):
            pass
        with pytest.raises(InputError):
            noisy_ops.enable_noisy_ops(**wrong)
    assert noisy_ops.get_injection_stats()["error_scale"] == 0.3


# --- selections ---------------------------------------------------------------------------------------------------


def test_scale_zero_is_the_bitwise_identity(llama, batch, caplog):
    clean, gradients = logits(llama, batch), train(llama, batch)
    with noisy_ops.noisy_ops_context(0.0, all_ops_mode=True):
        assert torch.equal(logits(llama, batch), clean)
        assert all(torch.equal(gradients[name], again) for name, again in train(llama, batch).items())
    assert not caplog.records


def test_an_operator_selected_by_name_needs_no_mode(llama, batch):
    noisy_ops.set_selective_operators(["softmax"])
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
    assert touched(noisy_ops.get_operator_injection_stats()) == {"softmax"}


@pytest.mark.parametrize("select", [noisy_ops.set_selective_operators, noisy_ops.set_selective_layers])
def test_an_empty_selection_is_none_and_none_is_all(llama, batch, select, caplog):
    clean = logits(llama, batch)
    select([])
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
        assert torch.equal(logits(llama, batch), clean)
    assert noisy_ops.get_injection_stats()["forward"] == 0
    assert not caplog.records
    select(None)
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
        logits(llama, batch)
    assert touched(noisy_ops.get_layer_injection_stats()) == {*range(LAYERS), *OUTSIDE}


def test_unknown_operators_are_refused_with_the_valid_ones():
    for refuse in (
        lambda: noisy_ops.set_selective_ops(["sofmax"]),
        lambda: noisy_ops.set_operator_noise_scales({"sofmax": 1}),
    ):
        with pytest.raises(ValueError, match=r'unknown operator "sofmax", did you mean "softmax"\?') as caught:
            refuse()
        assert all(name in str(caught.value) for name in OPERATORS)
    assert noisy_ops.get_selective_operators() is None


@pytest.mark.parametrize("name", ["layer_norm", "layernorm", "norm"])
@pytest.mark.parametrize(("family", "kind"), [("llama", "rms_norm"), ("gpt2", "layer_norm")])
def test_layer_norm_means_every_norm(name, family, kind):
    noisy_ops.set_selective_operators([name])
    assert noisy_ops.get_selective_operators() == [name]
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
        logits(build(family), tokens(family))
    assert noisy_ops.get_operator_injection_stats()[kind]["forward"] == 2 * LAYERS + 1
    assert touched(noisy_ops.get_operator_injection_stats()) == {kind}


def test_a_window_ends_before_its_end(llama, batch):
    noisy_ops.set_layer_window(0, 2)
    assert noisy_ops.get_selective_layers() == [0, 1]
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
    assert touched(noisy_ops.get_layer_injection_stats()) == {0, 1}


@pytest.mark.parametrize(("start", "end"), [(2, 2), (3, 1), (-1, 2)])
def test_a_window_of_no_layers_is_refused(start, end):
    with pytest.raises(InputError, match="expected 0 <= start < end"):
        noisy_ops.set_layer_window(start, end)


def test_what_is_set_can_be_read():
    noisy_ops.set_selective_layers([2, "head"])
    noisy_ops.set_selective_operators(["softmax", "matmul"])
    noisy_ops.set_noise_phases(forward=False, backward=True)
    assert noisy_ops.get_selective_layers() == [2, "head"]
    assert noisy_ops.get_selective_operators() == ["softmax", "matmul"]
    assert noisy_ops.get_noise_phases() == {"forward": False, "backward": True}
    noisy_ops.enable_noisy_ops(0.05)
    noisy_ops.disable_noisy_ops()
    assert noisy_ops.get_selective_layers() == [2, "head"]
    assert noisy_ops.get_noise_phases() == {"forward": False, "backward": True}


def test_settings_made_while_noise_is_on_hold_at_once(llama, batch):
    clean = logits(llama, batch)
    noisy_ops.enable_noisy_ops(0.05, all_ops_mode=True)
    first = logits(llama, batch)
    noisy_ops.set_noise_phases(False, False)
    assert torch.equal(logits(llama, batch), clean)
    noisy_ops.set_noise_phases(True, False)
    noisy_ops.set_selective_layers(["head"])
    noisy_ops.reset_injection_stats()
    assert not torch.equal(logits(llama, batch), first)
    assert touched(noisy_ops.get_layer_injection_stats()) == {"head"}
    noisy_ops.set_selective_layers([])
    assert torch.equal(logits(llama, batch), clean)


def test_gradients_still_to_come_follow_the_settings_of_now(llama, batch):
    clean = train(llama, batch)
    noisy_ops.set_noise_phases(forward=False, backward=True)
    noisy_ops.enable_noisy_ops(0.05)
    llama.zero_grad()
    loss = llama(**batch, labels=batch["input_ids"]).loss
    noisy_ops.set_selective_layers([1])
    loss.backward()
    assert touched(noisy_ops.get_layer_injection_stats()) == {1}
    assert not torch.equal(llama.model.embed_tokens.weight.grad, clean["model.embed_tokens.weight"])
    loss = llama(**batch, labels=batch["input_ids"]).loss
    noisy_ops.set_noise_phases(forward=False, backward=False)
    noisy_ops.reset_injection_stats()
    loss.backward()
    assert noisy_ops.get_injection_stats()["backward"] == 0


def test_multipliers_and_layer_scales_set_the_dose(llama, batch, capsys):
    clean = logits(llama, batch)
    noisy_ops.set_operator_noise_scales({"matmul": 0, "linear": 0})
    with noisy_ops.noisy_ops_context(0.05):
        assert torch.equal(logits(llama, batch), clean)
    noisy_ops.set_operator_noise_scales({"layernorm": 2})  # in place of the others
    noisy_ops.set_per_layer_scales({0: 0.0, "1-2": 0.2, "final_norm": 0.2})
    noisy_ops.set_selective_operators(["norm"])
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
        rows = {row.layer: row for row in noisy_ops.here.running.stats.rows}
    assert 0 not in rows
    assert all(rows[layer].dose == pytest.approx(0.4, rel=0.1) for layer in (1, 2, "final_norm"))
    with pytest.raises(InputError, match=r"per_layer_scales\[1\]: got -1"):
        noisy_ops.set_per_layer_scales({1: -1})
    with pytest.raises(InputError, match="layer"):
        noisy_ops.set_per_layer_scales({"tail": 1})


# --- what went wrong before ---------------------------------------------------------------------------------------


def test_the_head_is_not_the_last_layer(llama, batch):
    noisy_ops.set_selective_layers([LAYERS - 1])
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
        last = noisy_ops.get_layer_injection_stats()
        noisy_ops.set_selective_layers(["head"])
        noisy_ops.reset_layer_injection_stats()
        logits(llama, batch)
        head = noisy_ops.get_layer_injection_stats()
    assert last["head"] == ZERO
    assert last[LAYERS - 1]["forward"] == 9  # seven projections, two products
    assert head["head"]["forward"] == 1
    assert touched(head) == {"head"}


def test_gradient_noise_is_booked_where_the_gradient_was_made(llama, batch):
    noisy_ops.set_noise_phases(forward=False, backward=True)
    with noisy_ops.noisy_ops_context(0.05):
        train(llama, batch)
    layers = noisy_ops.get_layer_injection_stats()
    assert {layers[layer]["backward"] for layer in range(LAYERS)} == {18}  # two operands each
    assert layers["head"]["backward"] == 2
    clean = train(llama, batch)
    noisy_ops.set_selective_layers([1])
    with noisy_ops.noisy_ops_context(0.05):
        noisy = train(llama, batch)
    assert touched(noisy_ops.get_layer_injection_stats()) == {1}
    down = "model.layers.{}.mlp.down_proj.weight"
    assert torch.equal(noisy[down.format(2)], clean[down.format(2)])
    assert not torch.equal(noisy[down.format(1)], clean[down.format(1)])


def test_matmul_is_not_linear(llama, batch):
    for operator in ("matmul", "linear"):
        noisy_ops.set_selective_operators([operator])
        with noisy_ops.noisy_ops_context(0.05):
            train(llama, batch)
        stats = noisy_ops.get_operator_injection_stats()
        assert touched(stats) == {operator}
        assert min(stats[operator].values()) > 0


def test_a_layer_norm_without_bias_survives_its_gradient():
    norm = nn.LayerNorm(8, bias=False)
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
        norm(torch.randn(3, 8, requires_grad=True)).sum().backward()
    assert noisy_ops.get_operator_injection_stats()["layer_norm"] == {"forward": 1, "backward": 2}
    assert norm.weight.grad is not None


def test_gradient_checkpointing_changes_no_gradient(batch):
    model = build("llama").train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
            gradients.append(train(model, batch))
    assert all(torch.equal(gradients[0][name], again) for name, again in gradients[1].items())


# --- places -------------------------------------------------------------------------------------------------------


def test_plain_calls_outside_any_model_get_noise_and_are_counted(capsys):
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    clean = F.linear(x, w)
    with noisy_ops.noisy_ops_context(0.05):
        assert not torch.equal(F.linear(x, w), clean)
        (x @ w).sum().backward()
    assert noisy_ops.get_layer_injection_stats()[None] == {"forward": 2, "backward": 1}
    assert noisy_ops.get_injection_stats()["forward"] == 2


def test_plain_calls_are_not_remembered_one_by_one():
    x = torch.ones(2, 2)
    with noisy_ops.noisy_ops_context(0.05):
        for _ in range(100):
            x @ x
        assert not noisy_ops.here.running.run.log


def test_registering_gives_the_number_of_layers_and_attaches_nothing(llama):
    hooks = [dict(module._forward_pre_hooks) | dict(module._forward_hooks) for module in llama.modules()]
    before = traces()
    assert noisy_ops.register_layer_hooks(llama) == LAYERS
    assert hooks == [dict(module._forward_pre_hooks) | dict(module._forward_hooks) for module in llama.modules()]
    assert traces() == before
    assert list(noisy_ops.get_layer_injection_stats()) == [*range(LAYERS), *OUTSIDE]


class OwnNorm(nn.Module):
    """A norm that has to be tried to be recognised, and that tries a torch operator to do so."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return F.rms_norm(x, (8,), self.weight)


def test_looking_at_a_model_is_not_running_it():
    model = nn.Sequential(*(nn.Sequential(OwnNorm(), nn.Linear(8, 8)) for _ in range(2)))
    with noisy_ops.noisy_ops_context(0.5, all_ops_mode=True):
        noisy_ops.register_layer_hooks(model)
        assert noisy_ops.get_injection_stats()["forward"] == 0
        model(torch.randn(2, 8))
        assert noisy_ops.get_operator_injection_stats()["rms_norm"]["forward"] == 2
        OwnNorm()(torch.randn(2, 8))  # not registered
        assert noisy_ops.get_operator_injection_stats()["rms_norm"]["forward"] == 3


def test_registering_refuses_what_has_no_layers():
    with pytest.raises(ModelError, match="no decoder blocks found"):
        noisy_ops.register_layer_hooks(nn.Linear(2, 2))
    with pytest.raises(InputError, match="expected a torch module"):
        noisy_ops.register_layer_hooks("gpt2")


@pytest.mark.parametrize("first", ["register", "enable"])
def test_parts_of_a_registered_model_are_known_when_called_one_by_one(llama, first):
    steps = [lambda: noisy_ops.register_layer_hooks(llama), lambda: noisy_ops.enable_noisy_ops(0.05)]
    for step in steps if first == "register" else reversed(steps):
        step()
    llama.model.layers[1].mlp.down_proj(torch.randn(2, 48))
    llama.lm_head(torch.randn(2, 32))
    assert touched(noisy_ops.get_layer_injection_stats()) == {1, "head"}


def test_the_current_layer_is_known_while_noise_is_on(llama, batch):
    seen = []
    parts = [llama.model.embed_tokens, *llama.model.layers, llama.model.norm, llama.lm_head]
    handles = [part.register_forward_pre_hook(lambda *_: seen.append(noisy_ops.get_current_layer())) for part in parts]
    handles.append(llama.model.layers[0].register_forward_hook(lambda *_: seen.append(noisy_ops.get_current_layer())))
    logits(llama, batch)
    assert set(seen) == {None}
    seen.clear()
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
        assert noisy_ops.get_current_layer() is None
    for handle in handles:
        handle.remove()
    assert seen == ["embed", 0, None, 1, 2, "final_norm", "head"]


def test_the_phase_is_the_label_or_what_runs_now(llama, batch):
    seen = []
    weight = llama.lm_head.weight
    handles = [
        llama.lm_head.register_forward_pre_hook(lambda *_: seen.append(noisy_ops.get_phase())),
        weight.register_hook(lambda _: seen.append(noisy_ops.get_phase())),
    ]
    assert noisy_ops.get_phase() == "unknown"
    with noisy_ops.noisy_ops_context(0.05):
        train(llama, batch)
        noisy_ops.set_phase("rollout")
        assert noisy_ops.get_phase() == "rollout"
    for handle in handles:
        handle.remove()
    assert seen == ["forward", "backward"]
    assert noisy_ops.get_phase() == "unknown"  # set inside the context, undone with it
    with pytest.raises(InputError, match="expected a label"):
        noisy_ops.set_phase(3)


# --- statistics ---------------------------------------------------------------------------------------------------


def test_every_view_adds_up_to_the_total(llama, batch):
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
        train(llama, batch)
    total = noisy_ops.get_injection_stats()
    for view in (noisy_ops.get_layer_injection_stats(), noisy_ops.get_operator_injection_stats()):
        for phase in ("forward", "backward"):
            assert sum(counts[phase] for counts in view.values()) == total[phase] > 0


def test_each_view_can_be_reset_alone_and_all_of_them_together(llama, batch):
    noisy_ops.enable_noisy_ops(0.05)
    logits(llama, batch)
    total = noisy_ops.get_injection_stats()["forward"]
    noisy_ops.reset_layer_injection_stats()
    assert not touched(noisy_ops.get_layer_injection_stats())
    assert noisy_ops.get_operator_injection_stats()["linear"]["forward"] > 0
    noisy_ops.reset_operator_injection_stats()
    assert not touched(noisy_ops.get_operator_injection_stats())
    assert noisy_ops.get_injection_stats()["forward"] == total
    logits(llama, batch)
    assert sum(counts["forward"] for counts in noisy_ops.get_layer_injection_stats().values()) == total
    noisy_ops.reset_injection_stats()
    assert noisy_ops.get_injection_stats()["forward"] == 0
    logits(llama, batch)
    assert sum(counts["forward"] for counts in noisy_ops.get_layer_injection_stats().values()) == total


def test_the_summary_says_what_is_set_and_what_happened(llama, batch, capsys):
    noisy_ops.print_injection_summary()
    assert capsys.readouterr().out.splitlines()[-1] == "nothing injected"
    noisy_ops.set_selective_layers([1])
    noisy_ops.set_phase("rollout")
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
        noisy_ops.print_injection_summary()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "noise is on, phase rollout: relative_gaussian at scale 0.05, layers 1, operators linear matmul bmm, "
        "phases forward backward, seed 0"
    )
    assert lines[1].startswith("dose of relative_gaussian: 0.05")
    assert [line.split() for line in lines[2:]] == [
        ["operator", "forward", "backward"],
        ["linear", "7", "0"],
        ["matmul", "2", "0"],
        ["layer", "forward", "backward"],
        ["1", "9", "0"],
    ]


# --- same question, same bytes --------------------------------------------------------------------------------------


def test_noise_is_a_function_of_seed_and_step(llama, batch):
    def two_steps(**options):
        with noisy_ops.noisy_ops_context(0.05, **options):
            return logits(llama, batch), logits(llama, batch)

    first, second = two_steps()
    assert not torch.equal(first, second)
    assert all(map(torch.equal, two_steps(), (first, second)))
    assert not torch.equal(two_steps(seed=1)[0], first)


def test_changing_a_setting_does_not_start_the_steps_again(llama, batch):
    noisy_ops.enable_noisy_ops(0.05)
    first, second = logits(llama, batch), logits(llama, batch)
    noisy_ops.enable_noisy_ops(0.05)
    assert torch.equal(logits(llama, batch), first)
    noisy_ops.set_per_layer_scales({0: 0.05})
    assert torch.equal(logits(llama, batch), second)


# --- never a silent nothing -----------------------------------------------------------------------------------------


def test_a_selection_that_met_nothing_is_reported(llama, batch, caplog):
    noisy_ops.set_selective_layers([99])
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "layers 99, operators linear matmul bmm"
    ]
    caplog.clear()
    noisy_ops.set_selective_layers(None)
    noisy_ops.enable_noisy_ops(0.05)
    logits(llama, batch)
    noisy_ops.set_selective_operators(["gelu"])
    logits(llama, batch)
    noisy_ops.set_selective_operators(["silu"])
    logits(llama, batch)
    noisy_ops.disable_noisy_ops()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["operators gelu"]


def test_noise_below_the_rounding_of_the_dtype_is_reported(caplog):
    model = build("llama").bfloat16()
    with noisy_ops.noisy_ops_context():
        logits(model, tokens())
    assert "below the rounding of their dtype" in caplog.text


def test_nothing_is_reported_where_nothing_is_wrong(llama, batch, caplog):
    with noisy_ops.noisy_ops_context(0.05):
        logits(llama, batch)
    with noisy_ops.noisy_ops_context(0.05):
        pass
    noisy_ops.set_selective_layers([99])
    with pytest.raises(ZeroDivisionError), noisy_ops.noisy_ops_context(0.05):
        float(logits(llama, batch).numel()) / 0
    assert not caplog.records


def test_compiled_models_are_refused(llama, batch):
    compiled = torch.compile(llama, backend="eager")
    with noisy_ops.noisy_ops_context(0.05), pytest.raises(ns.NoisescopeError, match="is compiled"):
        logits(compiled, batch)


# --- beside other modes ---------------------------------------------------------------------------------------------


def test_injections_and_noisy_ops_may_overlap_in_any_order(llama, batch):
    clean = logits(llama, batch)
    with ns.inject(llama, ns.RelativeGaussian(0.05), layers=[0]) as run:
        noisy_ops.enable_noisy_ops(0.05)
        both = logits(llama, batch)
    alone = logits(llama, batch)
    with ns.inject(llama, ns.RelativeGaussian(0.05), layers=[0]):
        logits(llama, batch)
        noisy_ops.disable_noisy_ops()
    assert run.stats.calls() > 0
    assert not torch.equal(both, alone)
    assert torch.equal(logits(llama, batch), clean)


def test_default_devices_may_overlap_too(llama, batch):
    with torch.device("cpu"):
        noisy_ops.enable_noisy_ops(0.05)
    assert len(mode_stack()) == 1
    with torch.device("cpu"):
        noisy_ops.disable_noisy_ops()
    assert not mode_stack()
    torch.set_default_device("cpu")
    noisy_ops.enable_noisy_ops(0.05)
    torch.set_default_device(None)
    logits(llama, batch)
    assert noisy_ops.get_injection_stats()["forward"] > 0


# --- threads --------------------------------------------------------------------------------------------------------


def test_only_the_calling_thread_is_affected(llama, batch):
    clean = logits(llama, batch)
    noisy_ops.set_selective_layers([0])
    noisy_ops.enable_noisy_ops(0.05)

    def elsewhere():
        return logits(llama, batch), noisy_ops.get_injection_stats(), noisy_ops.get_selective_layers()

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(elsewhere) for _ in range(8)]]
    for output, stats, layers in found:
        assert torch.equal(output, clean)
        assert (stats["enabled"], stats["forward"], layers) == (False, 0, None)
    assert noisy_ops.get_injection_stats()["forward"] == 0


def test_threads_have_noise_of_their_own_at_the_same_time(llama, batch):
    expected = {}
    for layer in range(LAYERS):
        noisy_ops.set_selective_layers([layer])
        with noisy_ops.noisy_ops_context(0.05):
            expected[layer] = [logits(llama, batch) for _ in range(5)]
    meet = threading.Barrier(LAYERS)

    def alone(layer):
        noisy_ops.set_selective_layers([layer])
        with noisy_ops.noisy_ops_context(0.05):
            meet.wait()
            return [logits(llama, batch) for _ in range(5)], noisy_ops.get_layer_injection_stats()

    with ThreadPoolExecutor(LAYERS) as pool:
        for layer, (outputs, stats) in enumerate(pool.map(alone, range(LAYERS))):
            assert all(map(torch.equal, outputs, expected[layer]))
            assert touched(stats) == {layer}


def test_a_thread_that_ends_takes_its_noise_with_it(llama, batch):
    before = traces()

    def forget():
        noisy_ops.enable_noisy_ops(0.05)
        logits(llama, batch)

    for _ in range(3):
        thread = threading.Thread(target=forget)
        thread.start()
        thread.join()
    gc.collect()
    assert traces() == before


# --- switched on by the environment ---------------------------------------------------------------------------------


def test_without_the_switch_the_environment_asks_for_nothing():
    assert environment.read({}) is None
    assert environment.read({"VERL_NOISY_OPS_ENABLED": "0", "VERL_NOISY_OPS_SCALE": "much"}) is None
    assert environment.read({"NOISESCOPE_LAYERS": "3"}) is None


def test_every_variable_is_read():
    settings = environment.read(
        {
            "VERL_NOISY_OPS_ENABLED": "true",
            "VERL_NOISY_OPS_SCALE": "5e-2",
            "VERL_NOISY_OPS_TYPE": "uniform",
            "VERL_NOISY_OPS_ALL_OPS": "1",
            "VERL_NOISY_OPS_FORWARD_ONLY": "yes",
            "VERL_NOISY_OPS_BACKWARD_ONLY": "",
            "NOISESCOPE_LAYERS": "0-1,head",
            "NOISESCOPE_OPERATORS": "softmax, layer_norm",
            "NOISESCOPE_SEED": "7",
        }
    )
    assert (settings.error_scale, settings.error_type, settings.all_ops_mode) == (0.05, "uniform", True)
    assert (settings.forward, settings.backward, settings.seed) == (True, False, 7)
    assert settings.layers == (0, 1, "head")
    assert settings.selection.operators == ("softmax", "layer_norm", "rms_norm")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VERL_NOISY_OPS_ENABLED", "maybe"),
        ("VERL_NOISY_OPS_SCALE", "much"),
        ("VERL_NOISY_OPS_SCALE", "-1"),
        ("VERL_NOISY_OPS_SCALE", "nan"),
        ("VERL_NOISY_OPS_TYPE", "gausian"),
        ("VERL_NOISY_OPS_ALL_OPS", "2"),
        ("VERL_NOISY_OPS_FORWARD_ONLY", "x"),
        ("VERL_NOISY_OPS_BACKWARD_ONLY", "x"),
        ("NOISESCOPE_LAYERS", "tail"),
        ("NOISESCOPE_OPERATORS", "sofmax"),
        ("NOISESCOPE_SEED", "0.5"),
        ("VERL_NOISY_OPS_SCALES", "1"),
        ("NOISESCOPE_LAYER", "3"),
    ],
)
def test_a_bad_variable_is_refused_by_name(name, value):
    with pytest.raises(InputError, match=name):
        environment.read({"VERL_NOISY_OPS_ENABLED": "1", name: value})


@pytest.mark.parametrize("name", ["NOISESCOPE_CACHE", "NOISESCOPE_PROGRAM", "NOISESCOPE_COUNTS"])
def test_variables_of_ours_that_are_no_settings_are_left_alone(name):
    assert environment.read({"VERL_NOISY_OPS_ENABLED": "1", name: "somewhere"}) is not None


def test_two_phases_that_exclude_each_other_are_refused():
    only = ("VERL_NOISY_OPS_FORWARD_ONLY", "VERL_NOISY_OPS_BACKWARD_ONLY")
    with pytest.raises(InputError, match=" and ".join(only)):
        environment.read({"VERL_NOISY_OPS_ENABLED": "1", **dict.fromkeys(only, "1")})


PROGRAM = """
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor

import torch
from families import build, tokens
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

model, batch = build("llama"), tokens()

def run(_=0):
    output = model(**batch)
    output.logits.sum().backward()
    return output.logits.detach()

clean = run()
from noisescope import inject, noisy_ops, RelativeGaussian

def hooks():
    return len(_global_forward_hooks), len(_global_forward_pre_hooks)

def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()

def in_an_injection():
    with inject(model, RelativeGaussian(0.01), operators="silu") as injection:
        run()
    return injection.stats.calls()

def in_a_context():
    with noisy_ops.noisy_ops_context(0.0):
        quiet = run()
    return torch.equal(quiet, clean), torch.equal(run(), noisy)

def refusing():
    noisy_ops.disable_noisy_ops()
    return torch.equal(run(), clean), noisy_ops.get_injection_stats()["enabled"]

noisy = run()
found = {
    "main": not torch.equal(noisy, clean),
    "layers": {str(k): v for k, v in noisy_ops.get_layer_injection_stats().items()},
    "hooks": hooks(),
}
per_run = noisy_ops.get_injection_stats()["forward"]
noisy_ops.reset_injection_stats()
with ThreadPoolExecutor(3) as pool:
    idle = threading.Barrier(3)
    first = list(pool.map(lambda _: (idle.wait(), run())[1], range(3)))
    list(pool.map(run, range(6)))
found |= {
    "first step of each thread": [torch.equal(output, noisy) for output in first],
    "runs counted": noisy_ops.get_injection_stats()["forward"] / per_run,
    "hooks after the pool": hooks(),
    "in an injection": in_a_thread(in_an_injection),
    "in a context": in_a_thread(in_a_context),
    "refusing": in_a_thread(refusing),
    "enabled elsewhere": in_a_thread(lambda: noisy_ops.get_injection_stats()["enabled"]),
}
noisy_ops.disable_noisy_ops()
found["main after disable"] = torch.equal(run(), clean)
found["others after disable"] = torch.equal(in_a_thread(run), noisy)
print(json.dumps(found))
"""


def in_a_fresh_process(program, **variables):
    tests = Path(__file__).parents[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NOISY_OPS", "NOISESCOPE_"))}
    paths = os.pathsep.join([str(tests), str(tests.parent / "src")])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_environment_reaches_every_thread_of_a_process():
    done = in_a_fresh_process(
        PROGRAM, VERL_NOISY_OPS_ENABLED="1", VERL_NOISY_OPS_SCALE="0.05", NOISESCOPE_LAYERS="1", NOISESCOPE_SEED="3"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["main"]
    assert found["layers"].pop("1") == {"forward": 9, "backward": 18}
    assert found["layers"] == dict.fromkeys(("0", "2", *OUTSIDE), ZERO)
    assert found["first step of each thread"] == [True] * 3
    assert found["runs counted"] == 9
    assert found["hooks after the pool"] == found["hooks"]
    assert found["in an injection"] == LAYERS
    assert found["in a context"] == [True, True]
    assert found["refusing"] == [True, False]
    assert found["enabled elsewhere"]
    assert found["main after disable"]
    assert found["others after disable"]
    assert done.stderr.splitlines() == [
        "noise is on by environment, in every thread of this process from its first module call on: relative_gaussian "
        "at scale 0.05, layers 1, operators linear matmul bmm, phases forward backward, seed 3"
    ]


def test_a_process_whose_noise_met_nothing_says_so_when_it_ends():
    program = "import torch\nfrom noisescope import noisy_ops\ntorch.nn.Linear(2, 2)(torch.ones(2))"
    done = in_a_fresh_process(program, VERL_NOISY_OPS_ENABLED="1", NOISESCOPE_LAYERS="99")
    assert done.returncode == 0
    assert done.stderr.splitlines()[1].startswith("layers 99, operators linear matmul bmm: nothing matched")


def test_a_process_with_a_bad_variable_does_not_start():
    done = in_a_fresh_process("import noisescope.noisy_ops", VERL_NOISY_OPS_ENABLED="1", VERL_NOISY_OPS_SCALE="5e-2x")
    assert done.returncode == 1
    assert "InputError: VERL_NOISY_OPS_SCALE: scale: got '5e-2x', expected a number >= 0" in done.stderr


def test_names_are_complete_and_sorted():
    assert noisy_ops.__all__ == sorted(noisy_ops.__all__)
    assert all(callable(getattr(noisy_ops, name)) and getattr(noisy_ops, name).__doc__ for name in noisy_ops.__all__)
    assert noisy_ops.set_selective_ops is noisy_ops.set_selective_operators
    assert logging.getLogger("noisescope.noisy_ops").level == logging.NOTSET
