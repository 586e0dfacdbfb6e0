"""locate(): what it takes, what it refuses, what it leaves behind, and what it costs."""

import copy
from dataclasses import replace

import pytest
import torch
from grid import model as fixture_model
from grid import tokens as fixture_tokens
from torch import nn

import noisescope as ns
from families import FAMILIES, build, tokens
from noisescope.errors import InputError, ModelError, NonFinite, NothingMatched
from noisescope.locating import locate
from noisescope.locating.identities import identity
from trained import fixture


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_healthy_and_left_bit_identical(family: str) -> None:
    model = build(family)
    before, flags = copy.deepcopy(model.state_dict()), copy.deepcopy([vars(m).copy() for m in model.modules()])
    state = torch.get_rng_state()
    verdict = locate(model, tokens(family))
    assert verdict.healthy
    assert not any("refused" in line for line in verdict.sections["verdict"]["not_covered"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    after = [vars(module) for module in model.modules()]
    assert [row.keys() for row in after] == [row.keys() for row in flags]
    eps = [(key, value) for row in after for key, value in row.items() if isinstance(value, float)]
    assert eps == [(key, value) for row in flags for key, value in row.items() if isinstance(value, float)]


def test_the_model_is_whole_again_after_an_error() -> None:
    model = build("llama")
    broken = model.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        locate(model, tokens())
    broken.remove()
    assert locate(model, tokens()).healthy


@pytest.mark.parametrize(
    "prompts",
    [None, "ids", "inputs", ["one text", "another one"], ["a single text"], torch.arange(3, 9)],
    ids=str,
)
def test_prompts_may_be_texts_or_tokens(prompts: object) -> None:
    model, tokenizer = fixture("llama")
    given = {"ids": torch.arange(3, 9).view(2, 3), "inputs": {"input_ids": torch.arange(3, 9).view(1, 6)}}
    prompts = given[prompts] if isinstance(prompts, str) else prompts
    assert locate(model, prompts, tokenizer=tokenizer, budget=6).healthy


def test_a_model_without_a_tokenizer_gets_made_up_tokens() -> None:
    verdict = locate(build("llama"), budget=6)
    assert verdict.sections["config"]["shape"] == [2, 32]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "hots"}, InputError, "did you mean"),
        ({"runs": 1}, InputError, "runs: got 1"),
        ({"budget": 1}, InputError, "budget: got 1"),
        ({"simulate": "gain:1@9"}, NothingMatched, "out of range"),
        ({"simulate": "gain:1@1.conv"}, NothingMatched, "unknown operator of layer 1"),
        ({"simulate": "saturation:3@1"}, InputError, "magnitude 3"),
        ({"simulate": "gain@1,p=2"}, InputError, "p: got 2"),
        ({"prompts": torch.tensor([[64]])}, InputError, "got token 64"),
        ({"prompts": torch.zeros(0, dtype=torch.long)}, InputError, "no tokens"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        locate(build("llama"), **{"prompts": tokens(), **options})


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(InputError, match=r"call model.eval\(\) first"):
        locate(build("gpt2").train(), tokens("gpt2"))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match="no decoder blocks"):
        locate(nn.Linear(3, 3).eval(), {"input": torch.ones(1, 3)})


@pytest.mark.parametrize("method", ["auto", "host", "identities", "repeat"])
def test_a_model_that_overflows_by_itself_is_no_broken_device(method: str) -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] = float("nan")
    with pytest.raises(NonFinite, match=r"layers\.1\.mlp\.up_proj\.linear"):
        locate(model, tokens(), method=method)


def test_infinities_of_the_device_are_a_fault() -> None:
    verdict = locate(build("llama"), tokens(), simulate="bit_flip:0.5@1.linear")
    assert verdict.sites[0].layer == 1
    assert verdict.sites[0].operator == "linear"


def test_without_identities_it_takes_six_passes_at_most_and_fifteen_with() -> None:
    for name in ("llama", "gpt2"):
        model, inputs = fixture_model(name, "float32"), fixture_tokens(name)
        few, all_ = locate(model, inputs, budget=6), locate(model, inputs)
        assert few.sections["cost"]["forward_pass_equivalents"] <= 6
        assert "identities" not in few.sections["cost"]["by_stage"]
        assert all_.sections["cost"]["forward_pass_equivalents"] <= 15


def test_the_cost_is_what_was_computed() -> None:
    """Against the multiplications of every product that the model's function calls make, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    model, inputs = build("llama", attn="eager"), tokens()
    with FlopCounterMode(display=False) as bare, torch.no_grad():
        model(**inputs)
    with FlopCounterMode(display=False) as counted:
        verdict = locate(model, inputs, method="repeat", runs=3)
    assert verdict.sections["cost"]["forward_pass_equivalents"] == 3
    assert counted.get_total_flops() == pytest.approx(3 * bare.get_total_flops(), rel=0.01)


def test_more_runs_find_what_comes_and_goes() -> None:
    model, inputs = build("llama"), tokens()
    rare = "gain:0.5@1.mlp.up_proj.linear,p=0.1"
    found = [bool(locate(model, inputs, method="repeat", runs=20, simulate=f"{rare},seed={s}").sites) for s in range(8)]
    assert sum(found) >= 5  # 1 - 0.9^20 = 0.88 of them, but for those that fire always or never


def test_what_comes_out_otherwise_within_rounding_is_listed_and_healthy() -> None:
    """A device that sums in another order every time."""

    class Atomics:
        def __init__(self) -> None:
            self.dice = torch.Generator().manual_seed(0)

        def wants(self, _layer: object, operator: str, _module: str, phase: str) -> bool:
            return phase == "forward" and operator == "linear"

        def after(self, call, value):
            with torch._C.DisableTorchFunction():
                x, w = call.args[:2]
                order = torch.randperm(x.shape[-1], generator=self.dice)
                return torch.nn.functional.linear(x[..., order], w[..., order], *call.args[2:])

    model = build("llama")
    with ns.injection.Watch(Atomics(), model):
        verdict = locate(model, tokens())
    assert verdict.healthy
    assert verdict.non_deterministic
    assert all(".linear." in name for name in verdict.non_deterministic)


def test_an_identity_that_a_kernel_refuses_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = [
        replace(row, check=_refuse) if row.name == "checksum" and "linear" in row.operators else row
        for row in identity.IDENTITIES
    ]
    monkeypatch.setattr(identity, "IDENTITIES", refuses)
    verdict = locate(build("llama"), tokens())
    assert verdict.healthy
    line = next(line for line in verdict.sections["verdict"]["not_covered"] if "refused" in line)
    assert "checksum of" in line
    assert int(line.split()[0]) == sum(site["operator"] in ("linear", "matmul", "bmm") for site in _asked(verdict))


def _refuse(probe: object) -> None:
    raise RuntimeError("no kernel for these strides")


def _asked(verdict: ns.Verdict) -> list[dict]:
    return [site for site in verdict.sections["sites"] if site["identities"]]
