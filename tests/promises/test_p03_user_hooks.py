"""P3: the user's own hooks fire as often, in the same order and with the same power as without an injection."""

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from digests import bits, digest, quarantine
from torch import nn
from torch.nn.modules import module as torch_module

import noisescope as ns
from families import tokens
from noisescope.injection import Watch

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

Events = list[tuple[str, str]]

KINDS: dict[str, Callable[[nn.Module, Callable], object]] = {
    "pre": lambda module, hook: module.register_forward_pre_hook(hook),
    "pre with kwargs": lambda module, hook: module.register_forward_pre_hook(hook, with_kwargs=True),
    "first of the pre": lambda module, hook: module.register_forward_pre_hook(hook, prepend=True),
    "forward": lambda module, hook: module.register_forward_hook(hook),
    "forward with kwargs": lambda module, hook: module.register_forward_hook(hook, with_kwargs=True),
    "forward always": lambda module, hook: module.register_forward_hook(hook, always_call=True),
    "backward": lambda module, hook: module.register_full_backward_hook(hook),
    "backward pre": lambda module, hook: module.register_full_backward_pre_hook(hook),
    "state dict": lambda module, hook: module.register_state_dict_post_hook(hook),
}
GLOBAL = {
    "any pre": torch_module.register_module_forward_pre_hook,
    "any forward": torch_module.register_module_forward_hook,
    "any backward": torch_module.register_module_full_backward_hook,
}


def listen(model: nn.Module, events: Events, *, kinds=tuple(KINDS), everywhere: bool = False) -> None:
    """Hooks of every kind on every module (and, if asked, torch's process-wide ones) that write down that they ran."""
    paths = {module: path for path, module in model.named_modules()}

    def noting(kind: str) -> Callable[..., None]:
        return lambda module, *_: events.append((kind, paths.get(module, "elsewhere")))

    for module in model.modules():
        for kind in kinds:
            KINDS[kind](module, noting(kind))
    for kind, register in GLOBAL.items() if everywhere else ():
        register(noting(kind))
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda _, name=name: events.append(("gradient", name)))


def train(model: nn.Module) -> str:
    """One forward and backward pass, and a state dict; the bits of the logits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "For backward hooks to be called")
        output = model(**tokens(), labels=tokens()["input_ids"], use_cache=False)
    output.loss.backward()
    model.state_dict()
    model.zero_grad(set_to_none=True)
    return bits(output.logits)


def check_hooks_survive(model: nn.Module, events: Events, **where) -> None:
    """The events of a run under injection are those of a clean run, inside and after, and every hook is still there."""
    clean_logits = train(model)
    clean, before = list(events), digest(model)
    assert len(clean) > 100
    for use in ("inside", "after"):
        events.clear()
        if use == "inside":
            with ns.inject(model, ns.RelativeGaussian(0.05), **where):
                assert train(model) != clean_logits or where["phases"] == "backward"
        else:
            assert train(model) == clean_logits
        assert events == clean, use
        assert digest(model) == before, use


@pytest.mark.parametrize("operators", [None, ["softmax"], ["rms_norm"], ["linear"]], ids=str)
@pytest.mark.parametrize("phases", ["forward", "backward", "both"])
def test_hooks_fire_as_without_an_injection(tiny, operators, phases):
    events: Events = []
    listen(tiny, events)
    check_hooks_survive(tiny, events, operators=operators, phases=phases)


def test_process_wide_hooks_of_the_user(tiny):
    events: Events = []
    with quarantine():
        listen(tiny, events, everywhere=True)
        check_hooks_survive(tiny, events, phases="both")


def test_nested_injections(tiny):
    events: Events = []
    listen(tiny, events)
    train(tiny)
    clean = list(events)
    events.clear()
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"), ns.inject(tiny, ns.Uniform(0.05), phases="both"):
        train(tiny)
    assert events == clean


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_the_old_backward_hook(tiny):
    events: Events = []
    for path, module in tiny.named_modules():
        if isinstance(module, nn.Linear) or "norm" in path:
            module.register_backward_hook(lambda *_, path=path: events.append(("old backward", path)))
    listen(tiny, events, kinds=("pre", "forward", "forward always"))
    check_hooks_survive(tiny, events, phases="both")


# --- hooks that change something --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["lm_head", "model.norm"])
def test_a_hook_that_replaces_an_output_still_does(tiny, path):
    stencil = torch.linspace(-1, 1, 12).view(1, 12, 1).requires_grad_()
    tiny.get_submodule(path).register_forward_hook(lambda module, args, output: stencil.expand_as(output).contiguous())
    clean = train(tiny)
    where = {"operators": ["linear", "rms_norm"], "layers": [0, 1, "embed", "final_norm"]}
    with ns.inject(tiny, ns.RelativeGaussian(0.05), **where):
        noisy = train(tiny)
    assert noisy == clean  # all that was disturbed lies before what the hook put in its place


def test_a_pre_hook_that_replaces_an_input_still_does(tiny):
    stencil = torch.linspace(-1, 1, 32).expand(2, 12, 32)
    tiny.model.norm.register_forward_pre_hook(lambda module, args: (stencil, *args[1:]))
    clean = train(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05), layers=[0, 1], phases="both"):
        noisy = train(tiny)
    assert noisy == clean


def test_a_backward_hook_that_replaces_a_gradient_still_does(tiny):
    gradients = []
    head = tiny.lm_head
    head.register_full_backward_pre_hook(lambda module, grads: tuple(torch.ones_like(grad) for grad in grads))
    head.register_full_backward_hook(lambda module, inputs, outputs: gradients.append(bits(outputs[0])))
    train(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        train(tiny)
    assert gradients == [bits(torch.ones(2, 12, 64))] * 2


def test_a_user_hook_sees_the_disturbed_value(tiny):
    seen = []
    tiny.model.norm.register_forward_hook(lambda module, args, output: seen.append(bits(output)))
    train(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05), operators="rms_norm", layers="final_norm"):
        train(tiny)
    assert seen[0] != seen[1]


# --- hooks that come and go while the injection runs ------------------------------------------------------------


def test_hooks_removed_inside_stay_removed_and_hooks_added_inside_stay(tiny):
    events: Events = []
    norm = tiny.model.norm
    going = norm.register_forward_hook(lambda *_: events.append(("going", "")))
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        train(tiny)
        going.remove()
        norm.register_forward_hook(lambda *_: events.append(("coming", "")))
        train(tiny)
    train(tiny)
    assert [kind for kind, _ in events] == ["going", "coming", "coming"]
    assert len(norm._forward_hooks) == 1


def test_a_hook_that_removes_itself_while_it_runs(tiny):
    calls = itertools.count()
    handles = []

    def once(*_) -> None:
        next(calls)
        handles.pop().remove()

    handles.append(tiny.model.norm.register_forward_hook(once))
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        train(tiny), train(tiny)
    train(tiny)
    assert next(calls) == 1
    assert not tiny.model.norm._forward_hooks


def test_an_injection_opened_and_closed_by_the_users_hooks(tiny):
    injection = ns.inject(tiny, ns.RelativeGaussian(0.05), layers=[1])
    block = tiny.model.layers[1]
    opening = block.register_forward_pre_hook(lambda *_: injection.__enter__() and None)
    closing = block.register_forward_hook(lambda *_: injection.__exit__(None, None, None))
    before = digest(tiny)
    train(tiny)
    assert digest(tiny) == before
    assert set(injection.stats.by_layer) == {1}
    opening.remove(), closing.remove()


# --- able to fail -----------------------------------------------------------------------------------------------


def cleanup_removes_all_hooks(monkeypatch):
    """The mistake of peers: cleaning up by clearing the model's hook dictionaries."""
    real = Watch.__exit__

    def mutant(self, *error):
        real(self, *error)
        for module in self.layout.root.modules():
            module._forward_hooks.clear()

    monkeypatch.setattr(Watch, "__exit__", mutant)


def model_is_called_past_its_hooks(monkeypatch):
    real = Watch.__enter__

    def mutant(self):
        for module in self.layout.root.modules():
            module.__dict__["_forward_pre_hooks"] = {}
        return real(self)

    monkeypatch.setattr(Watch, "__enter__", mutant)


def fused_modules_run_twice(monkeypatch):
    real = Watch._module_ends

    def mutant(self, module, args, output):
        if isinstance(module, nn.Linear) and self._mine(module, args):
            for hook in module._forward_hooks.values():
                hook(module, args, {}, output)
        return real(self, module, args, output)

    monkeypatch.setattr(Watch, "_module_ends", mutant)


@pytest.mark.parametrize("mutant", [cleanup_removes_all_hooks, model_is_called_past_its_hooks, fused_modules_run_twice])
def test_the_mutants_are_caught(tiny, monkeypatch, mutant):
    events: Events = []
    listen(tiny, events)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_hooks_survive(tiny, events, phases="both")
