"""What comparisons once got wrong: each a test."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trials import IDS, healthy

import noisescope as ns
from families import build, tokens
from noisescope.errors import InputError, ModelError, NothingMatched
from trained import fixture


def hooked(module: torch.nn.Module, change: Any, run: Any) -> Any:
    handle = module.register_forward_hook(change)
    try:
        return run()
    finally:
        handle.remove()


def test_an_error_of_prefill_alone_is_seen_by_gate_and_layers() -> None:
    model, _ = fixture("llama")
    reference = ns.trace(model, IDS, decode=4)

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
    with pytest.raises(NothingMatched, match="0-7 final_norm head are not in the suspect's trace"):
        ns.validate_migration(reference, less)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral", "gemma3", "gpt2", "opt"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_divergence(family: str, side: str) -> None:
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
    vote = ns.compare_many([bare, other, bare])
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
