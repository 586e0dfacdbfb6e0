"""What comparisons once got wrong: each a test."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from trials import IDS, healthy

import noisescope as ns
from families import build, tokens
from noisescope.errors import InputError, ModelError, NothingMatched
from noisescope.traces import Trace
from trained import fixture


def hooked(module: torch.nn.Module, change: Any, run: Any) -> Any:
    handle = module.register_forward_hook(change)
    try:
        return run()
    finally:
        handle.remove()


@cache
def decoded() -> tuple[torch.nn.Module, Trace]:
    """A fixture, and its trace with tokens computed from a cache."""
    model, _ = fixture("llama")
    return model, ns.trace(model, IDS, decode=4)


@cache
def with_gradients(name: str) -> tuple[torch.nn.Module, Trace]:
    model, _ = fixture(name)
    return model, ns.trace(model, IDS, backward=True)


def test_an_error_of_prefill_alone_is_seen_by_gate_and_layers() -> None:
    model, reference = decoded()

    def larger_in_prefill(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * 1.5 if out.shape[1] > 1 else out

    layer = model.model.layers[7]  # nothing after it attends to what it wrote
    suspect = hooked(layer.mlp, larger_in_prefill, lambda: ns.trace(model, IDS, decode=4, floor=False))
    found = ns.compare(reference, suspect)
    row = next(row for row in found.layers if row.layer == 7)
    assert row.error > 0.01
    gate = ns.validate_migration(reference, suspect, layers="7", limits={"mape": 0.01})
    assert [(row.stage, row.passed) for row in gate.rows] == [("prefill", False), ("decode", True)]


def test_an_error_that_was_not_sampled_does_not_pass_the_gate() -> None:
    model, _ = fixture("llama")
    ids = torch.randint(3, 500, (8, 60), generator=torch.Generator().manual_seed(0))
    reference = ns.trace(model, ids, floor=False)

    def one_spike(_module: Any, _args: Any, out: Any) -> Any:
        hidden = (out[0] if isinstance(out, tuple) else out).clone()
        hidden[0, 0, 0] += 1e4
        return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

    suspect = hooked(model.model.layers[2].mlp, one_spike, lambda: ns.trace(model, ids, floor=False))
    row = ns.validate_migration(reference, suspect, layers="2").rows[0]
    assert not row.passed
    whole = [ns.trace(model, ids, floor=False, full=True)]
    whole += [hooked(model.model.layers[2].mlp, one_spike, lambda: ns.trace(model, ids, floor=False, full=True))]
    exactly = ns.validate_migration(*whole, layers="2").rows[0].figure
    assert row.figure.low <= exactly.value <= row.figure.high


def test_a_trace_passes_the_gate_against_itself_whatever_its_values() -> None:
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.embed_tokens.weight[5, 3] = 3e3
    trace = ns.trace(model, tokens("llama"), floor=False)
    gate = ns.validate_migration(trace, trace)
    assert gate.passed
    assert all(row.figure.value == row.figure.high == 0 for row in gate.rows)


def test_the_gate_of_all_layers_needs_all_layers(tmp_path: Path) -> None:
    model, reference = healthy("llama", "float32")
    less = ns.trace(model, IDS, sites="*embed_tokens*", floor=False)
    with pytest.raises(
        NothingMatched, match=r"does not hold model\.layers\.0\.residual\.1\.forward, the last operator of 0"
    ):
        ns.validate_migration(reference, less)


PADDED = [
    pytest.param(side, family, marks=[pytest.mark.slow] if at % 2 != own else [])
    for own, side in enumerate(["left", "right"])
    for at, family in enumerate(["llama", "mixtral", "qwen3", "gemma3", "gpt2", "opt"])
]
"""all families on both sides; by default on one of them"""


@pytest.mark.parametrize(("side", "family"), PADDED)
def test_padding_is_no_divergence(side: str, family: str) -> None:
    model, ids = build(family, attn="sdpa"), tokens(family, rows=3, length=16)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    given = {"input_ids": ids, "attention_mask": mask if side == "left" else mask.flip(1)}
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    reference = ns.trace(model, given)
    assert not ns.compare(reference, ns.trace(eager, given, floor=False)).diverges
    assert not ns.compare(ns.trace(eager, given), reference).diverges


def test_a_site_that_is_zero_where_the_floor_is_measured_has_room_for_rounding() -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 0
    ids = tokens("llama", rows=3, length=128 // 2)["input_ids"][:, :60]
    ids[:2] = 0
    reference = ns.trace(model, {"input_ids": ids}, checkpoint="one")
    other = ns.trace(copy.deepcopy(model).bfloat16(), {"input_ids": ids}, checkpoint="one", floor=False)
    assert not ns.compare(reference, other).diverges


def test_what_is_not_finite_needs_no_floor_and_equal_bits_neither() -> None:
    model, _ = fixture("llama")
    bare = ns.trace(model, IDS, floor=False)
    assert ns.compare(bare, bare).outcome == "within the noise floor"
    broken = hooked(
        model.model.layers[2].mlp, lambda _m, _a, out: out * torch.nan, lambda: ns.trace(model, IDS, floor=False)
    )
    found = ns.compare(bare, broken)
    assert (found.outcome, found.exit_code, found.diverges) == ("diverges", 10, True)


def test_a_vote_without_floors_claims_nothing() -> None:
    model, _ = healthy("llama", "float32")
    bare = ns.trace(model, IDS, floor=False)
    other = ns.trace(model, IDS, floor=False, emulate="gain:0.1@2.linear")
    vote = ns.compare_many([bare, other, ns.trace(model, IDS, floor=False)])
    assert (vote.odd, vote.exit_code) == (None, 11)
    assert "none of the traces has a noise floor" in str(vote)


def test_inputs_of_another_model_are_refused_before_anything_runs() -> None:
    _, reference = healthy("llama", "float32")
    other, _ = fixture("gpt2")
    with pytest.raises(InputError, match="is of another model"):
        ns.trace(other, inputs_from=reference)
    with pytest.raises(InputError, match="is of another model"):
        ns.locate(other, reference=reference)
    with pytest.raises(InputError, match="was made with seed 0"):
        ns.trace(healthy("llama", "float32")[0], inputs_from=reference, seed=3)


def test_other_weights_are_refused_where_one_side_alone_knows_its_file() -> None:
    model, _ = fixture("llama")
    one = ns.trace(model, IDS, checkpoint="file", floor=False)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(InputError, match="different weights"):
        ns.compare(one, ns.trace(model, IDS, floor=False))


def test_no_names_are_no_map() -> None:
    one = ns.trace(build("llama"), tokens("llama"), checkpoint="one", floor=False)
    other = ns.trace(build("qwen3"), tokens("llama"), checkpoint="one", floor=False)
    with pytest.raises(InputError, match="different structure"):
        ns.compare(one, other, names={})


def test_values_too_large_for_a_sketch_are_refused_when_they_are_traced() -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(2e38)
    with pytest.raises(ModelError, match="too large for a trace"):
        ns.trace(model, tokens("llama", rows=64), floor=False)


def test_whole_values_that_are_not_those_recorded_are_refused(tmp_path: Path) -> None:
    model, _ = healthy("llama", "float32")
    trace = ns.trace(model, IDS, full=True, floor=False, sites="*embed*")
    changed = replace(trace, full={0: lambda: [value * 2 for value in trace.full[0]()]})
    found = ns.load_trace(changed.save(tmp_path / "b.trace"))
    with pytest.raises(InputError, match="are not those that were recorded"):
        found.full[0]()


def test_hidden_states_and_ids_are_in_the_digest(tmp_path: Path) -> None:
    _, reference = healthy("llama", "float32")
    states = reference.hidden[0]()
    other = replace(reference, hidden={0: lambda: {**states, "3.0": states["3.0"] * 2}})
    assert other.digest != reference.digest
    assert replace(reference, ids=({"input_ids": IDS + 1},)).digest != reference.digest


def test_a_mask_as_wide_as_the_model_is_not_fed() -> None:
    from transformers import LlamaForCausalLM

    from families import CONFIGS

    config = copy.deepcopy(CONFIGS["llama"])
    config.num_attention_heads, config.num_key_value_heads = 1, 1
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config).eval()
    given = tokens("llama", rows=1, length=32)
    reference = ns.trace(model, given, inputs=True, checkpoint="one")
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    found = ns.compare(reference, ns.trace(eager, given, inputs_from=reference, checkpoint="one", floor=False))
    assert not found.diverges


# --- the gate looks at something, or says so --------------------------------------------------------------------


def test_a_gate_without_layers_is_not_passed() -> None:
    _, reference = healthy("llama", "float32")
    with pytest.raises(NothingMatched, match="layers: got none"):
        ns.validate_migration(reference, reference, layers="")


def test_a_model_without_blocks_is_one_layer_of_the_gate() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)).eval()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    reference = ns.trace(model, run=lambda: model(x))
    suspect = hooked(model[1], lambda _m, _a, out: out * 3, lambda: ns.trace(model, run=lambda: model(x), floor=False))
    gate = ns.validate_migration(reference, suspect)
    assert [(row.layer, row.passed) for row in gate.rows] == [("model", False)]
    assert ns.validate_migration(reference, reference).passed
    found = str(ns.compare(reference, suspect))
    assert "added by itself" not in found
    assert "--inputs-from" not in found


def test_the_last_operator_of_a_layer_must_be_there_to_pass() -> None:
    model, reference = healthy("llama", "float32")
    attention = ns.trace(model, IDS, sites="*.self_attn.*", floor=False, emulate="gain:2@3.linear")
    with pytest.raises(NothingMatched, match=r"does not hold model\.layers\.3\.residual\.1\.forward"):
        ns.validate_migration(reference, attention, layers="3")


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_gradients_of_other_attention_are_no_divergence(name: str) -> None:
    model, reference = with_gradients(name)
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    traces = [reference, ns.trace(other, IDS, backward=True)]
    for reference, suspect in (traces, traces[::-1]):
        found = ns.compare(reference, suspect)
        assert found.outcome == "within the noise floor"
        assert any(site.site.phase == "backward" for site in found.sites)


def test_an_error_of_gradients_is_blamed_and_gated() -> None:
    """Where gradients go: from the head down to the layer, and on to all before it."""
    model, reference = with_gradients("llama")

    def larger(_module: Any, given: Any, _out: Any) -> Any:
        return tuple(grad * 1.5 if grad is not None else None for grad in given)

    handle = model.model.layers[3].mlp.down_proj.register_full_backward_hook(larger)
    try:
        suspect = ns.trace(model, IDS, backward=True, floor=False)
    finally:
        handle.remove()
    found = ns.compare(reference, suspect)
    assert found.first is not None
    assert (found.first.site.layer, found.first.site.phase) == (3, "backward")
    layers = [row.layer for row in found.layers]
    assert layers.index(7) < layers.index(3) < layers.index(0)
    roles = {row.layer: row.role for row in found.layers}
    assert {roles[layer] for layer in (4, 5, 6, 7)} == {"clean"}
    assert {roles[layer] for layer in (0, 1, 2)} == {"unknown"}
    assert "Gradients cannot be fed" in str(found)
    failed = {row.layer for row in ns.validate_migration(reference, suspect).rows if not row.passed}
    assert {0, 1, 2, 3} & failed
    assert not {4, 5, 6, 7, "head"} & failed


# --- which devices, which dtype ---------------------------------------------------------------------------------


def test_two_cards_that_only_look_the_same_are_judged_by_the_floor() -> None:
    """Everything that they say of themselves is equal, and every sum is in another order."""
    model, reference = healthy("llama", "float32")
    what = ["reduction_order", "gain:0.1@4.linear"]
    suspect = ns.trace(model, inputs_from=reference, floor=False, emulate=what)
    silent = replace(suspect.head, environment=replace(suspect.head.environment, emulated=()))
    found = ns.compare(reference, replace(suspect, head=silent))
    assert found.first is not None
    assert found.first.site.layer == 4
    assert found.sources == (4,)


def test_a_card_of_another_name_is_another_device() -> None:
    _, reference = healthy("llama", "float32")
    other = replace(reference.head, environment=replace(reference.head.environment, accelerator="NPU 9"))
    found = ns.compare(reference, replace(reference, head=other))
    assert "accelerator (none -> NPU 9)" in str(found)


def test_autocast_is_judged_by_the_dtype_that_it_computes_in() -> None:
    model, reference = healthy("llama", "float32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        suspect = ns.trace(model, IDS, floor=False)
    assert ns.compare(reference, suspect).outcome == "within the noise floor"


def test_blocks_in_bfloat16_behind_a_wide_embedding() -> None:
    model, reference = healthy("llama", "float32")
    mixed = copy.deepcopy(model).bfloat16()
    mixed.model.embed_tokens.float()
    narrow = lambda _module, _args, out: out.bfloat16()  # noqa: E731 - the cast that such models have
    reference = replace(reference, head=replace(reference.head, checkpoint="x"))
    suspect = hooked(mixed.model.embed_tokens, narrow, lambda: ns.trace(mixed, IDS, checkpoint="x", floor=False))
    assert suspect.head.environment.dtype == "bfloat16"
    assert ns.compare(reference, suspect).outcome == "within the noise floor"


# --- what is shown ----------------------------------------------------------------------------------------------


def test_a_divergence_of_decode_has_the_figures_of_decode(tmp_path: Path) -> None:
    model, reference = decoded()

    def larger_in_decode(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * 1.3 if out.shape[1] == 1 else out

    down = model.model.layers[3].mlp.down_proj
    suspect = hooked(down, larger_in_decode, lambda: ns.trace(model, IDS, decode=4, floor=False))
    found = ns.compare(reference, suspect)
    assert found.first is not None
    assert found.first.site.stage == found.sections["verdict"]["stage"] == "decode"
    line = next(line for line in str(found).splitlines() if line.startswith("first divergence"))
    assert ", decode   SQNR" in line
    found.save(tmp_path)
    text = (tmp_path / "comparison.md").read_text()
    assert "relative error 0," not in text
    assert ", decode" in text.split("\n")[2]


def test_logits_alone_have_nothing_to_compare_with_operators() -> None:
    model, reference = healthy("llama", "float32")
    with pytest.raises(InputError, match="holds logits alone; `noisescope locate --method fingerprint"):
        ns.compare(reference, ns.trace(model, IDS, outputs_only=True))


def test_a_figure_is_inside_its_interval() -> None:
    model, reference = healthy("llama", "float32")
    for what in ("gain:0.1@1.linear", "gain:0.01@4.linear", "bias:0.3@2.linear"):
        found = ns.compare(reference, ns.trace(model, inputs_from=reference, floor=False, emulate=what))
        for site in (*found.sites, *found.fed):
            for figure in vars(site.metrics).values():
                assert figure.low <= figure.value <= figure.high


# --- names ------------------------------------------------------------------------------------------------------


class Wrapped(torch.nn.Module):
    """A model under other names."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(model)
        self.config = model.config

    def forward(self, **given: Any) -> Any:
        return self.net(**given)


NAMES = {"net.*": "*"}


def test_other_names_need_no_common_file() -> None:
    model, reference = healthy("llama", "float32")
    suspect = ns.trace(Wrapped(model).eval(), {"input_ids": IDS}, floor=False, emulate="gain:0.1@2.linear")
    found = ns.compare(reference, suspect, names=NAMES)
    assert found.sources == (2,)
    assert not found.sections["missing"]["only_suspect"]


def test_a_vote_over_two_frameworks() -> None:
    model, reference = healthy("llama", "float32")
    others = [
        ns.trace(Wrapped(model).eval(), {"input_ids": IDS}, emulate=what, floor=False)
        for what in ((), "gain:0.1@2.linear")
    ]
    vote = ns.compare_many([reference, *others, ns.trace(model, IDS)], names=NAMES)
    assert vote.odd == "trace 3"


def test_a_map_that_says_nothing_or_too_much_is_refused() -> None:
    _, reference = healthy("llama", "float32")
    with pytest.raises(InputError, match="no module has a name of the map"):
        ns.compare(reference, reference, names={"no.such.module": "x"})
    with pytest.raises(InputError, match="the map makes one of"):
        ns.compare(reference, reference, names={"model.layers.*.mlp.up_proj": "model.layers.*.mlp.gate_proj"})


def test_other_numbers_given_to_own_code_are_told() -> None:
    model, x = torch.nn.Linear(8, 8).eval(), torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    reference = ns.trace(model, run=lambda: model(x))
    found = ns.compare(reference, ns.trace(model, run=lambda: model(x + 1), floor=False))
    assert "differs: inputs (float32:" in str(found)
    assert "inputs" not in str(ns.compare(reference, ns.trace(model, run=lambda: model(x), floor=False)))
