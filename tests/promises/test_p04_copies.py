"""P4: a copy, a state dict or a saved model taken while an injection runs carries nothing of it out."""

import copy
import io
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from digests import bits, digest, hooks_of
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import noisescope as ns
from families import tokens
from noisescope.injection import Watch


def outputs(model: nn.Module) -> list[str]:
    """Bits of logits and gradients."""
    output = model(**tokens(), labels=tokens()["input_ids"], use_cache=False)
    return [bits(output.logits), *map(bits, torch.autograd.grad(output.loss, list(model.parameters())))]


def by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def by_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def by_state_dict(model: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        fresh = LlamaForCausalLM(model.config).eval()
    fresh.load_state_dict(copy.deepcopy(model.state_dict()))
    return fresh


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": by_pickle,
    "torch.save": by_torch_save,
    "state_dict": by_state_dict,
}


def check_nothing_carried_out(model: nn.Module, take: Callable[[nn.Module], nn.Module], **where) -> None:
    """A copy taken inside is the clean model, outside and already inside, and the model itself is as before."""
    clean, before = outputs(model), digest(model)
    keys = {path: sorted(vars(module)) for path, module in model.named_modules()}
    with ns.inject(model, ns.RelativeGaussian(0.05), **where):
        noisy = outputs(model)
        taken = take(model)
        after = take(model)
    assert noisy != clean
    for copied in (taken, after):
        assert not any(hooks_of(module) for module in copied.modules())
        assert {path: sorted(vars(module)) for path, module in copied.named_modules()} == keys
        assert outputs(copied) == clean
    assert digest(model) == before


@pytest.mark.parametrize("phases", ["forward", "both"])
@pytest.mark.parametrize("take", COPIES.values(), ids=COPIES)
def test_copies_carry_nothing_out(tiny, take, phases):
    check_nothing_carried_out(tiny, take, phases=phases)


@pytest.mark.parametrize("take", [copy.deepcopy, by_pickle, by_torch_save])
def test_copies_of_other_families(family, take):
    name, model = family
    clean = bits(model(**tokens(name)).logits)
    with ns.inject(model, ns.RelativeGaussian(0.05)):
        model(**tokens(name))
        copied = take(model)
    assert bits(copied(**tokens(name)).logits) == clean


def test_save_pretrained(tiny, tmp_path):
    clean = outputs(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        assert outputs(tiny) != clean
        tiny.save_pretrained(tmp_path / "inside")
    tiny.save_pretrained(tmp_path / "outside")
    assert outputs(AutoModelForCausalLM.from_pretrained(tmp_path / "inside").eval()) == clean
    for file in (tmp_path / "outside").iterdir():
        assert (tmp_path / "inside" / file.name).read_bytes() == file.read_bytes()


def test_a_copy_taken_by_a_hook_in_the_middle_of_a_forward(tiny):
    clean, taken = outputs(tiny), []
    handle = tiny.model.layers[0].mlp.register_forward_hook(lambda *_: taken.append(tiny.state_dict()))
    with ns.inject(tiny, ns.RelativeGaussian(0.05)):
        outputs(tiny)
    handle.remove()
    fresh = LlamaForCausalLM(tiny.config).eval()
    fresh.load_state_dict(taken[0])
    assert outputs(fresh) == clean


def test_a_copy_computes_cleanly_while_the_injection_still_runs(tiny):
    clean = outputs(tiny)
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        assert outputs(tiny) != clean
        assert outputs(copy.deepcopy(tiny)) == clean


def test_a_copy_used_on_another_thread_while_the_injection_still_runs(tiny):
    clean, found = outputs(tiny), []
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        outputs(tiny)
        copied = copy.deepcopy(tiny)
        thread = threading.Thread(target=lambda: found.append(outputs(copied)))
        thread.start(), thread.join()
    assert found == [clean]


def test_values_kept_from_inside_are_plain_tensors(tiny):
    with ns.inject(tiny, ns.RelativeGaussian(0.05), operators="linear", phases="both"):
        kept = tiny(**tokens(), use_cache=True)
    assert type(kept.logits) is torch.Tensor
    assert type(pickle.loads(pickle.dumps(kept.logits.detach()))) is torch.Tensor
    clean = [bits(gradient) for gradient in gradients(tiny, tiny(**tokens()).logits)]
    noisy_forward = [bits(gradient) for gradient in gradients(tiny, kept.logits)]
    assert noisy_forward != clean  # the graph is that of the disturbed values, its gradients are left alone now
    with ns.inject(tiny, ns.RelativeGaussian(0.05), operators="linear"):
        expected = [bits(gradient) for gradient in gradients(tiny, tiny(**tokens(), use_cache=True).logits)]
    assert noisy_forward == expected


def gradients(model: nn.Module, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(logits.square().mean(), list(model.parameters()))


# --- able to fail -----------------------------------------------------------------------------------------------


class Hook:
    """A hook on the module itself, as an engine that attaches to the model would leave: it can be copied."""

    def __call__(self, module, args, output):
        return None


def hooks_hang_on_the_model(monkeypatch):
    real = Watch.__enter__

    def mutant(self):
        self.mutant_handles = [module.register_forward_hook(Hook()) for module in self.layout.root.modules()]
        return real(self)

    real_exit = Watch.__exit__

    def mutant_exit(self, *error):
        for handle in self.mutant_handles:
            handle.remove()
        real_exit(self, *error)

    monkeypatch.setattr(Watch, "__enter__", mutant)
    monkeypatch.setattr(Watch, "__exit__", mutant_exit)


def weights_are_noisy_while_it_runs(monkeypatch):
    real, real_exit = Watch.__enter__, Watch.__exit__

    def mutant(self):
        self.kept = {name: value.clone() for name, value in self.layout.root.state_dict().items()}
        for parameter in self.layout.root.parameters():
            parameter.data.mul_(1.01)
        return real(self)

    def mutant_exit(self, *error):
        self.layout.root.load_state_dict(self.kept)
        real_exit(self, *error)

    monkeypatch.setattr(Watch, "__enter__", mutant)
    monkeypatch.setattr(Watch, "__exit__", mutant_exit)


@pytest.mark.parametrize(
    ("mutant", "take"),
    [
        (hooks_hang_on_the_model, copy.deepcopy),
        (hooks_hang_on_the_model, by_pickle),
        (weights_are_noisy_while_it_runs, by_state_dict),
    ],
)
def test_the_mutants_are_caught(tiny, monkeypatch, mutant, take):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_nothing_carried_out(tiny, take)
