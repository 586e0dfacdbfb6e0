"""A simulator from outside: its dice, its counts, and that it leaves nothing behind."""

import copy
import hashlib
from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from one_call import OneCall, broken, product
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack

import noisescope as ns
from families import build, tokens
from noisescope.errors import ExitOrder, InputError
from noisescope.faults import FAULTS, Fault, FaultSimulator
from noisescope.injection import Watch

pytestmark = pytest.mark.usefixtures("one_thread")

SITES = {"low_precision_accumulate": "1.linear", "lut_exp": "1.softmax"}


def outside(model: nn.Module) -> dict[str, Any]:
    """Everything that a fault must leave as it found it."""
    return {
        "weights": {name: fingerprint(value) for name, value in model.state_dict().items()},
        "modules": {path: sorted(vars(module)) for path, module in model.named_modules()},
        "hooks": [
            (path, name, list(entries))
            for path, module in model.named_modules()
            for name, entries in vars(module).items()
            if "hooks" in name and isinstance(entries, dict) and entries
        ],
        "process": {
            name: list(entries)
            for name, entries in vars(torch_module).items()
            if name.startswith("_global_") and isinstance(entries, dict)
        },
        "modes": _get_current_function_mode_stack(),
        "dice": fingerprint(torch.get_rng_state()),
        "gradients": torch.is_grad_enabled(),
    }


def fingerprint(value: Tensor) -> str:
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def logits(model: nn.Module, seed: int = 0) -> Tensor:
    with torch.no_grad():
        return model(**tokens(seed=seed), use_cache=False).logits


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return build("llama")


# --- dice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAULTS)
def test_a_seed_is_a_run_and_nobody_elses_dice_move(llama, kind):
    def run(seed: int) -> list[Tensor]:
        with FaultSimulator(llama, SITES.get(kind, "1.linear"), kind, _visible(kind), seed=seed, sparsity=0.5):
            return [logits(llama), logits(llama)]

    torch.manual_seed(7)
    before = torch.get_rng_state()
    one = run(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(8)
    assert all(map(torch.equal, one, run(3)))
    assert not torch.equal(one[0], run(4)[0])
    assert torch.equal(one[0], one[1]) != FAULTS[kind].stochastic


def _visible(kind: str) -> float | None:
    """A magnitude at which a tiny model shows the fault."""
    return {"spike": 20.0, "bit_flip": 0.05, "stuck_at": 0.2}.get(kind)


def test_looking_for_a_site_moves_no_dice_of_a_model_that_drops_out():
    model = build("gpt2").train()
    before = torch.get_rng_state()
    FaultSimulator(model, "1", "gain", inputs=tokens("gpt2"))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_an_intermittent_fault_strikes_its_share_of_the_calls(p):
    model, hidden, clean = product(torch.float32)
    calls = 400
    with FaultSimulator(model, "0", "gain", 0.1, p=p, seed=1, inputs={"hidden": hidden}) as fault:
        struck = sum(not torch.equal(model(hidden), clean) for _ in range(calls))
    assert abs(struck - calls * p) < 3.5 * sqrt(calls * p * (1 - p))
    assert fault.changed == struck * clean.numel()
    assert fault.elements == calls * clean.numel()


def test_a_permanent_fault_strikes_always():
    model, hidden, clean = product(torch.float32)
    with FaultSimulator(model, "0", "gain", 0.1, inputs={"hidden": hidden}):
        assert not any(torch.equal(model(hidden), clean) for _ in range(50))


def test_whether_a_call_is_struck_does_not_depend_on_the_model():
    def struck() -> list[bool]:
        model, hidden, clean = product(torch.float32)
        with FaultSimulator(model, "0", "gain", 0.1, p=0.5, seed=5, inputs={"hidden": hidden}):
            return [not torch.equal(model(hidden), clean) for _ in range(20)]

    torch.manual_seed(0)
    first = struck()
    torch.manual_seed(1)
    assert struck() == first


# --- counts -----------------------------------------------------------------------------------------------------


def test_a_fault_that_changes_nothing_is_inert(llama):
    clean = logits(llama)
    with FaultSimulator(llama, "1.linear", "dead_zone", 1e-30) as fault:
        assert torch.equal(logits(llama), clean)
    assert (fault.changed, fault.inert) == (0, True)
    assert fault.elements > 0
    with FaultSimulator(llama, "1.linear", "dead_zone") as fault:
        logits(llama)
    assert not fault.inert


def test_zeros_that_lose_their_sign_are_no_change():
    model = OneCall(lambda value: value * 1)
    assert broken(model, torch.tensor([[-0.0, 4.0]]), "dead_zone", 0.5)[1].inert


def test_before_it_ran_a_fault_has_counted_nothing(llama):
    fault = FaultSimulator(llama, "1", "gain")
    assert (fault.changed, fault.elements, fault.inert) == (0, 0, True)


# --- nothing stays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["1", "1.linear", "1.rms_norm", "1.softmax", "1.attention", "embed", "head"])
def test_nothing_is_left_behind(site):
    model = build("llama")
    clean, before = logits(model), outside(model)
    with FaultSimulator(model, site, "gain", 0.5):
        assert not torch.equal(logits(model), clean)
    assert outside(model) == before
    assert torch.equal(logits(model), clean)


@pytest.mark.parametrize("site", ["1", "1.rms_norm", "1.softmax"])
def test_nor_after_an_exception(site):
    model = build("llama")
    clean, before = logits(model), outside(model)
    handle = model.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), FaultSimulator(model, site, "gain", 0.5):  # also in the survey
        logits(model)
    handle.remove()
    assert outside(model) == before
    simulator = FaultSimulator(model, site, "gain", 0.5)
    handle = model.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), simulator:
        logits(model)
    handle.remove()
    assert outside(model) == before
    assert torch.equal(logits(model), clean)


def test_an_exception_of_the_fault_itself_leaves_nothing(monkeypatch):
    model = build("llama")
    before = outside(model)
    simulator = FaultSimulator(model, "1.rms_norm", "gain", 0.5)
    monkeypatch.setattr(simulator, "_struck", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), simulator:
        logits(model)
    assert outside(model) == before


def test_copies_are_healthy(llama):
    clean = logits(llama)
    with FaultSimulator(llama, "1", "gain", 0.5) as fault:
        faulty = logits(llama)
        counted = fault.changed
        copied = copy.deepcopy(llama)
        assert torch.equal(logits(copied), clean)
        assert fault.changed == counted
    assert not torch.equal(faulty, clean)
    assert torch.equal(logits(copied), clean)
    assert not any(vars(module)[name] for module in copied.modules() for name in vars(module) if "hooks" in name)


def test_a_simulator_can_be_entered_again_and_not_twice_at_once(llama):
    clean = logits(llama)
    simulator = FaultSimulator(llama, "1", "gain", 0.5)
    with simulator:
        once = logits(llama)
        with pytest.raises(ExitOrder):
            simulator.__enter__()
    assert torch.equal(logits(llama), clean)
    with simulator:
        assert torch.equal(logits(llama), once)


# --- several, and others ----------------------------------------------------------------------------------------


def test_two_faults_at_once_are_both_there():
    model, hidden, clean = product(torch.float32)
    inputs = {"hidden": hidden}
    with FaultSimulator(model, "0", "gain", 1.0, inputs=inputs) as outer:
        with FaultSimulator(model, "0", "gain", 2.0, inputs=inputs) as inner:
            torch.testing.assert_close(model(hidden), clean * 6)
        torch.testing.assert_close(model(hidden), clean * 2)
    assert (outer.elements, inner.elements) == (2 * clean.numel(), clean.numel())


def test_looking_for_the_second_fault_is_no_run_of_the_first(llama):
    with FaultSimulator(llama, "1.rms_norm", "noise") as outer:
        FaultSimulator(llama, "2", "gain")
        assert outer.elements == 0
        with FaultSimulator(llama, "2", "gain"):
            first = logits(llama)
    inner = FaultSimulator(llama, "2", "gain")
    with FaultSimulator(llama, "1.rms_norm", "noise"), inner:
        assert torch.equal(logits(llama), first)


def test_faults_at_different_places_do_not_know_of_each_other(llama):
    with FaultSimulator(llama, "0.rms_norm", "gain", 0.5) as norm, FaultSimulator(llama, "2", "bias") as block:
        both = logits(llama)
    with FaultSimulator(llama, "2", "bias") as again, FaultSimulator(llama, "0.rms_norm", "gain", 0.5):
        assert torch.equal(logits(llama), both)
    assert block.changed == again.changed > 0
    assert norm.changed > 0


def test_a_fault_under_noise(llama):
    with ns.inject(llama, ns.RelativeGaussian(0.1), layers=[0], seed=1) as injection:
        noisy = logits(llama)
        with FaultSimulator(llama, "2", "gain", 0.5):
            both = logits(llama)
    assert not torch.equal(noisy, both)
    assert injection.step == 1  # looking for the fault's site was no step


def check_other_threads_are_healthy(model: nn.Module) -> None:
    """While a fault is open here, also in the middle of a forward, another thread computes on a healthy device."""
    clean, found = logits(model), []

    def elsewhere() -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(logits, model).result()

    def ask(*_: object) -> None:
        handle.remove()
        found.append(elsewhere())

    with FaultSimulator(model, "1.rms_norm", "gain", 0.5) as fault:
        handle = model.model.layers[2].register_forward_hook(ask)
        faulty = logits(model)
        counted = fault.changed
        found.append(elsewhere())
        assert fault.changed == counted
    assert not torch.equal(faulty, clean)
    assert all(torch.equal(value, clean) for value in found)
    assert len(found) == 2


def test_other_threads_are_healthy():
    check_other_threads_are_healthy(build("llama"))


def test_a_mutant_whose_hooks_ask_for_no_thread_is_caught(monkeypatch):
    monkeypatch.setattr(Watch, "_mine", lambda self, module, args: self.active)
    with pytest.raises(AssertionError):
        check_other_threads_are_healthy(build("llama"))


# --- values that are written into, and gradients ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "call"),
    [
        ("0.mul", lambda value: value.clone().mul_(2)),
        ("0.mul", lambda value: torch.mul(value, 2, out=torch.empty_like(value))),
        ("0.silu", lambda value: F.silu(value.clone(), inplace=True)),
        ("0.add", lambda value: value[:, :1].clone().add_(1).expand_as(value)),
    ],
)
def test_what_is_written_in_place_is_written_wrong(site, call):
    kept = []

    def keeping(value: Tensor) -> Tensor:
        kept.append(call(value))
        return -kept[-1]

    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    model = OneCall(keeping)
    clean = model(hidden)
    value, _ = broken(model, hidden, "gain", 1.0, site=site)
    torch.testing.assert_close(value, 2 * clean)
    torch.testing.assert_close(kept[-1], 2 * kept[0])


def test_whoever_holds_the_memory_written_into_sees_the_fault():
    out = torch.empty(3, 4)
    model = OneCall(lambda value: torch.mul(value, 2, out=out))
    hidden = torch.ones(3, 4)
    broken(model, hidden, "gain", 1.0, site="0.mul")
    assert torch.equal(out, torch.full((3, 4), 4.0))


def test_gradients_pass_as_if_nothing_had_happened():
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    model = OneCall(lambda value: F.linear(value, weight))
    hidden = torch.ones(2, 5)
    clean = torch.autograd.grad(model(hidden).sum(), weight)[0]
    with FaultSimulator(model, "0", "gain", 1.0, inputs={"hidden": hidden}):
        value = model(hidden)
        assert torch.equal(torch.autograd.grad(value.sum(), weight)[0], clean)
    assert torch.equal(value, 2 * model(hidden))


# --- asking -----------------------------------------------------------------------------------------------------


def test_all_ways_to_ask_are_one_question(llama):
    fault = Fault("gain", 0.5, "1", sparsity=0.5, seed=3)
    asked = [
        FaultSimulator(llama, fault),
        FaultSimulator(llama, "gain:0.5@1,sparsity=0.5", seed=3),
        FaultSimulator(llama, "gain:0.5@1,sparsity=0.5,seed=3"),
        FaultSimulator(llama, 1, "gain", 0.5, 0.5, 3),
    ]
    assert {simulator.fault for simulator in asked} == {fault}
    assert repr(asked[0]) == "<FaultSimulator: gain:0.5@1,sparsity=0.5,seed=3 at model.layers.1.residual.1>"


@pytest.mark.parametrize("more", [{"magnitude": 0.1}, {"sparsity": 0.1}, {"p": 0.5}, {"absolute": True}])
def test_what_a_whole_fault_says_is_not_said_twice(llama, more):
    for whole in ("gain:0.5@1", Fault("gain", 0.5, "1")):
        with pytest.raises(InputError, match="says itself"):
            FaultSimulator(llama, whole, **more)


def test_channels_can_be_named() -> None:
    model = build("llama")
    given = tokens("llama")
    found: dict[str, torch.Tensor] = {}

    def keep(_module: Any, _given: Any, output: torch.Tensor) -> None:
        found[name] = output.clone()

    hook = model.model.layers[1].mlp.down_proj.register_forward_hook(keep)
    name = "clean"
    model(**given)
    name = "broken"
    with FaultSimulator(model, "1.mlp.down_proj.linear", "gain", 1.0, channels=[3, 7]):
        model(**given)
    hook.remove()
    off = (found["broken"] != found["clean"]).flatten(0, 1).any(0).nonzero().flatten().tolist()
    assert off == [3, 7]
    assert torch.equal(found["broken"][..., 3], 2 * found["clean"][..., 3])


@pytest.mark.parametrize(("channels", "more"), [([], {}), ([-1], {}), ([1], {"sparsity": 0.5})])
def test_channels_that_cannot_be_meant(channels: list[int], more: dict[str, float]) -> None:
    with pytest.raises(InputError, match="channels: got"):
        FaultSimulator(build("llama"), "1.linear", "gain", channels=channels, **more)


def test_a_channel_that_the_value_lacks_is_an_error() -> None:
    model = build("llama")
    broken = FaultSimulator(model, "1.mlp.down_proj.linear", "gain", channels=[99])
    with pytest.raises(InputError, match=r"channels: got 99, .* has 0 to 31"), broken:
        model(**tokens("llama"))
