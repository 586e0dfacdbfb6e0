"""trace() and tracing(): what is recorded, that nothing is changed by it, and what is refused."""

import copy
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from safetensors import safe_open
from torch import nn

from families import FAMILIES, build, tokens
from noisescope import load_trace, trace, tracing
from noisescope.errors import InputError, NothingMatched
from noisescope.keys import fingerprint_model
from noisescope.sites import Layout
from noisescope.traces import Trace
from noisescope.traces.floor import DRAWS, FACTOR, HALF_DRAWS, OneUlp
from noisescope.traces.hidden import Hidden
from trained import fixture

IDS = torch.randint(3, 500, (3, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def llama() -> Any:
    return fixture("llama")[0]


@pytest.fixture(scope="module")
def reference(llama: Any) -> Trace:
    return trace(llama, IDS, full=True, inputs=True)


def test_every_operator_of_every_layer_is_there(reference: Trace) -> None:
    per_layer = [site.operator for site in reference.sites if site.layer == 3 and site.run == "free"]
    assert sorted(set(per_layer)) == ["attention", "linear", "residual", "rms_norm", "silu"]
    assert len(per_layer) == 13
    assert [site.layer for site in reference.sites if not isinstance(site.layer, int)] == [
        "embed",
        "final_norm",
        "head",
    ]


def test_statistics_are_those_of_the_whole_values(reference: Trace) -> None:
    for number, site in enumerate(reference.sites):
        whole = torch.cat([value.reshape(-1) for value in reference.full[number]()]).double()
        assert site.count == whole.numel()
        assert site.norm == pytest.approx(float(whole.norm()), rel=1e-6)
        assert site.max == float(whole.max())
        calls = reference.positions[site.positions]
        values = [value.reshape(-1) for value in reference.full[number]()]
        sampled = [float(values[call][element]) for call, element in calls[:50].tolist()]
        assert reference.sample[number][:50].tolist() == sampled


TRACED = [
    pytest.param(family, inputs, marks=[pytest.mark.slow] if inputs != at % 2 else [])
    for at, family in enumerate(FAMILIES)
    for inputs in (False, True)
]
"""every family with and without its hidden states; by default one or the other"""


@pytest.mark.parametrize(("family", "inputs"), TRACED)
def test_nothing_is_changed_by_tracing(family: str, inputs: bool) -> None:
    model, given = build(family), tokens(family)
    with torch.no_grad():
        before = model(**given)[0]
    weights, state = fingerprint_model(model), torch.get_rng_state()
    found = trace(model, given, inputs=inputs)
    with torch.no_grad():
        assert torch.equal(model(**given)[0], before)
    assert fingerprint_model(model) == weights
    assert torch.equal(torch.get_rng_state(), state)
    assert found.head.floor is not None
    assert all(site.tolerances and max(site.tolerances) < 1e3 for site in found.sites)


def test_logits_of_a_traced_run_are_those_of_a_bare_one(llama: Any) -> None:
    seen = []

    def run() -> None:
        seen.append(llama(IDS).logits)

    trace(llama, run=run, floor=False)
    with torch.no_grad():
        assert torch.equal(seen[0], llama(IDS).logits)


def test_the_same_run_gives_the_same_bytes(llama: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trace(llama, IDS).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_holds_all_of_it(reference: Trace, tmp_path: Path) -> None:
    found = load_trace(reference.save(tmp_path / "a.trace"))
    assert found.head == reference.head
    assert torch.equal(found.sketch, reference.sketch)
    assert torch.equal(found.sample, reference.sample)
    assert all(torch.equal(a, b) for a, b in zip(found.positions, reference.positions, strict=True))
    assert torch.equal(found.ids[0]["input_ids"], IDS)
    for number in reference.full:
        assert all(torch.equal(a, b) for a, b in zip(found.full[number](), reference.full[number](), strict=True))
    for at, state in reference.hidden[0]().items():
        assert torch.equal(found.hidden[0]()[at], state)
    assert found.digest == reference.digest


def test_a_file_can_be_read_without_noisescope(reference: Trace, tmp_path: Path) -> None:
    """As the page of the format says."""
    reference.save(tmp_path / "a.trace")
    with safe_open(str(tmp_path / "a.trace"), framework="np") as file:
        head = json.loads(file.metadata()["noisescope.trace"])
        sketch = file.get_tensor("sketch")
    site = head["sites"][7]
    assert (head["format"], len(sketch)) == (1, len(head["sites"]))
    assert abs((sketch[7].astype(float) ** 2).sum() ** 0.5 / site["norm"] - 1) < 0.2


def test_a_trace_of_another_process_dtype_and_device_string_is_read(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from noisescope import trace; from dataclasses import replace;"
        "from trained import fixture;"
        "model = fixture('llama')[0].bfloat16(); ids = torch.arange(48).view(2, 24);"
        "found = trace(model, ids, checkpoint='c');"
        "head = replace(found.head, environment=replace(found.head.environment, device='npu:0', torch='1.0'));"
        "replace(found, head=head).save(sys.argv[1])"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "npu.trace")], check=True, cwd=root, capture_output=True)
    from noisescope import compare

    here = trace(fixture("llama")[0], torch.arange(48).view(2, 24), checkpoint="c")
    found = compare(here, tmp_path / "npu.trace")
    assert found.outcome == "within the noise floor"
    assert {row["field"] for row in found.sections["differences"]} == {"device", "dtype", "torch"}


# --- what can be asked for --------------------------------------------------------------------------------------


def test_decoding_from_a_cache_is_a_stage_of_its_own(llama: Any) -> None:
    found = trace(llama, IDS, decode=4, floor=False)
    stages = {site.stage for site in found.sites}
    head = {site.stage: site for site in found.sites if site.layer == "head"}
    assert stages == {"prefill", "decode"}
    assert head["prefill"].shape == (3, 20, 512)
    assert head["decode"].sizes == (3 * 512,) * 4
    whole = trace(llama, IDS, floor=False)
    together = sum(site.norm**2 for site in head.values()) ** 0.5
    assert together == pytest.approx(next(site.norm for site in whole.sites if site.layer == "head"), rel=1e-5)


def test_gradients_are_those_of_autograd(llama: Any) -> None:
    found = trace(llama, IDS, backward=True, full=True, floor=False)
    embedded = llama.get_input_embeddings()(IDS).detach().requires_grad_()
    logits = llama(inputs_embeds=embedded).logits
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten(), reduction="sum")
    expected = torch.autograd.grad(loss, logits)[0]
    at = next(n for n, site in enumerate(found.sites) if site.name.startswith("lm_head.linear.0.backward"))
    hidden_grad = found.full[at]()[0]
    assert torch.allclose(hidden_grad, expected @ llama.lm_head.weight, atol=1e-5)
    assert all(parameter.grad is None for parameter in llama.parameters())


def test_sites_are_chosen_by_a_pattern(llama: Any) -> None:
    assert {site.operator for site in trace(llama, IDS, sites="*.mlp.*", floor=False).sites} == {"linear", "silu"}
    assert {site.operator for site in trace(llama, IDS, sites="re:.*attention", floor=False).sites} == {"attention"}
    with pytest.raises(NothingMatched, match="sites"):
        trace(llama, IDS, sites="*.nowhere")
    with pytest.raises(InputError, match="sites:"):
        trace(llama, IDS, sites="re:(")


def test_several_batches_are_one_value(llama: Any) -> None:
    found = trace(llama, [{"input_ids": IDS[:2]}, {"input_ids": IDS[2:]}], floor=False)
    whole = trace(llama, IDS, floor=False)
    for one, other in zip(found.sites, whole.sites, strict=True):
        assert len(one.sizes) == 2
        assert one.norm == pytest.approx(other.norm, rel=1e-5)


def test_padding_is_left_out(llama: Any) -> None:
    mask = torch.ones_like(IDS)
    mask[1, 10:] = 0
    changed = IDS.clone()
    changed[1, 10:] = 7
    one, other = (
        trace(llama, {"input_ids": ids, "attention_mask": mask}, floor=False, sites="*.mlp.*") for ids in (IDS, changed)
    )
    assert [site.bits for site in one.sites] == [site.bits for site in other.sites]
    assert one.sites[0].sizes == ((72 - 14) * one.sites[0].width,)


def test_outputs_alone_are_recorded_without_looking_inside(llama: Any) -> None:
    found = trace(llama, IDS, outputs_only=True)
    assert [site.name for site in found.sites] == ["logits.0.forward"]
    assert found.sites[0].shape == (3, 24, 512)


class Plain(nn.Module):
    """Not of Hugging Face, and without blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(self.first(x)), -1)


def test_own_code_and_models_of_any_kind(tmp_path: Path) -> None:
    model, x = Plain().eval(), torch.randn(5, 6)
    with tracing(model, tmp_path / "own.trace") as given:
        model(x)
        model(2 * x)
    found = load_trace(tmp_path / "own.trace")
    assert [site.operator for site in found.sites] == ["linear", "layer_norm", "softmax"]
    assert found.sites[0].sizes == (40, 40)
    assert found.digest == given.trace.digest
    again = trace(model, run=lambda: (model(x), model(2 * x)))
    assert [site.bits for site in again.sites] == [site.bits for site in found.sites]
    assert again.head.tokens == found.head.tokens


def test_a_block_that_raises_leaves_no_file_and_no_hooks(llama: Any, tmp_path: Path) -> None:
    def broken() -> None:
        llama(IDS)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), tracing(llama, tmp_path / "a.trace"):
        broken()
    assert not list(tmp_path.iterdir())
    with pytest.raises(NothingMatched, match="did not run"), tracing(llama):
        pass


def test_what_cannot_be_is_refused(llama: Any, reference: Trace) -> None:
    plain = trace(llama, IDS, floor=False)
    with pytest.raises(InputError, match="holds no hidden states; record it with --inputs"):
        trace(llama, IDS, inputs_from=plain)
    with pytest.raises(InputError, match="hidden states of shape"):
        trace(llama, IDS[:2], inputs_from=reference, floor=False)
    with pytest.raises(InputError, match="training mode"):
        trace(copy.deepcopy(llama).train(), IDS)
    with pytest.raises(InputError, match="decode: got 24, expected less"):
        trace(llama, IDS, decode=24)
    with pytest.raises(InputError, match="backward"):
        trace(llama, IDS, backward=True, outputs_only=True)
    with pytest.raises(InputError, match="expected a torch module"):
        trace("llama", IDS)  # type: ignore[arg-type]


# --- feeding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_device_that_is_fed_gives_the_bits_of_a_free_run(family: str) -> None:
    model, inputs = build(family), tokens(family)
    free = trace(model, inputs, inputs=True, floor=False)
    fed = trace(model, inputs, inputs_from=free, floor=False)
    bits = {site.name: site.bits for site in free.sites}
    assert all(bits[site.name] == site.bits for site in fed.sites)
    assert {site.run for site in fed.sites} == {"free", "fed"}


def test_a_layer_is_fed_with_what_was_kept(llama: Any) -> None:
    """The slow way: each block by itself, on the reference's hidden state."""
    layout, hidden = Layout.of(llama), Hidden()
    with torch.no_grad(), hidden.kept(layout):
        llama(IDS)
    broken = copy.deepcopy(llama)
    with torch.no_grad():
        broken.model.layers[2].mlp.down_proj.weight.mul_(1.5)
    again = Hidden(hidden.passes)
    own = Layout.of(broken)
    fed_in: list[torch.Tensor] = []
    hook = broken.model.layers[3].input_layernorm.register_forward_pre_hook(lambda _m, args: fed_in.append(args[0]))
    with torch.no_grad(), again.fed(own):
        logits = broken(IDS).logits
    hook.remove()
    with torch.no_grad():
        assert torch.equal(fed_in[0], hidden.passes[0]["3.0"])
        assert torch.equal(logits, llama(IDS).logits)  # the head is fed too


# --- floors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "draws"), [(2.0**-23, DRAWS), (2.0**-7, HALF_DRAWS)])
def test_a_floor_is_the_largest_error_of_runs_with_noise(llama: Any, unit: float, draws: int) -> None:
    """Against whole values of noisy runs, where the sketch is within its standard error."""
    clean = trace(llama, IDS, full=True)
    noisy = []
    for seed in range(draws):
        with OneUlp(Layout.of(llama), unit, seed=seed):
            noisy.append(trace(llama, IDS, full=True, floor=False))
    assert clean.head.floor is not None
    at = clean.head.floor.units.index(unit)
    for number, site in enumerate(clean.sites):
        a, *others = (torch.cat([v.reshape(-1) for v in t.full[number]()]).double() for t in (clean, *noisy))
        exact = max(float((other - a).norm() / a.norm()) for other in others)
        assert site.floors[at] == pytest.approx(exact, rel=0.15, abs=1.2 * unit)
        assert site.tolerances[at] == FACTOR * site.floors[at]


def test_floors_grow_with_the_unit_and_are_those_of_the_coarser_dtype(llama: Any) -> None:
    fine = trace(llama, IDS)
    narrow = trace(copy.deepcopy(llama).bfloat16(), IDS)
    assert fine.head.floor is not None
    assert narrow.head.floor is not None
    assert fine.head.floor.units == (2.0**-23, 2.0**-7)
    assert narrow.head.floor.units == (2.0**-7,)
    for one, other in zip(fine.sites, narrow.sites, strict=True):
        assert 0.1 < one.floors[1] / (one.floors[0] * 2**16) < 1.6  # sums of many terms are room for float32 alone
        assert one.floors[1] == pytest.approx(other.floors[0], rel=0.6)


def test_values_go_with_their_trace_and_wait_for_no_garbage_collector() -> None:
    model, ids = build("llama"), tokens("llama", rows=2, length=12)
    gc.collect()
    gc.disable()
    try:
        found = trace(model, ids, full=True, floor=False)
        values = [ref(value) for read in found.full.values() for value in read()]
        assert len(values) > 20
        del found
        assert not [value for value in values if value() is not None]
    finally:
        gc.enable()
