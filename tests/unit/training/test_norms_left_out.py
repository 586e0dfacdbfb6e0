"""Which norms get noise: those of experts and routers only if named, and an error where there are none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import noisescope as ns
from families import build
from noisescope.errors import NothingMatched
from noisescope.training.norm_noise import NoisyNorms
from short_trainings import trainer


def norms(model: nn.Module, **where: object) -> set[str]:
    """The paths of those that get noise."""
    applying = ns.NormWeightNoise(0.05, **where).on(model)
    assert isinstance(applying, NoisyNorms)
    return {norm.path for norm in applying.norms}


class Expert(nn.Module):
    """With a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.up(self.norm(hidden))


class Mixture(nn.Module):
    """Experts, and what chooses between them; `name` is what that is called."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.chooser = name
        self.experts = nn.ModuleList([Expert(), Expert()])
        self.shared = Expert()
        setattr(self, name, nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)))

    def forward(self, hidden: Tensor) -> Tensor:
        weights = getattr(self, self.chooser)(hidden).softmax(-1).unsqueeze(-1)
        found = torch.stack([expert(hidden) for expert in self.experts], dim=-2)
        return self.shared(hidden) + (weights * found).sum(-2)


class Block(nn.Module):
    """A norm, a mixture, and a gate that chooses no expert."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.norm, self.moe = nn.LayerNorm(8), Mixture(name)
        self.gate = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.moe(self.norm(hidden)) * self.gate(hidden).sigmoid()


class Experts(nn.Module):
    """Two blocks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.blocks, self.final = nn.ModuleList([Block(name), Block(name)]), nn.LayerNorm(8)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return self.final(hidden)


@pytest.mark.parametrize("chooser", ["gate", "router"])
def test_norms_of_experts_and_routers_are_left_out(chooser: str) -> None:
    plain = {f"blocks.{at}.{name}" for at in (0, 1) for name in ("norm", "moe.shared.norm", "gate.0")}
    assert norms(Experts(chooser)) == plain | {"final"}


@pytest.mark.parametrize("chooser", ["gate", "router"])
def test_norms_of_experts_and_routers_get_noise_if_named(chooser: str) -> None:
    model = Experts(chooser)
    assert norms(model, modules="*.experts") == {
        f"blocks.{at}.moe.experts.{one}.norm" for at in (0, 1) for one in (0, 1)
    }
    assert norms(model, modules=f"*.moe.{chooser}") == {f"blocks.{at}.moe.{chooser}.0" for at in (0, 1)}
    assert norms(model, modules=f"*.moe.{chooser}", layers=1) == {f"blocks.1.moe.{chooser}.0"}
    training = ns.NoisyTraining(model, ns.NormWeightNoise(0.5, modules=f"*.moe.{chooser}"))
    before = model(torch.ones(1, 3, 8))
    with training.step(0):
        assert not torch.equal(model(torch.ones(1, 3, 8)), before)
    assert torch.equal(model(torch.ones(1, 3, 8)), before)


def test_a_mixture_of_experts_has_its_own_norms_only_outside_them() -> None:
    blocks = {f"model.layers.{at}.{name}_layernorm" for at in range(3) for name in ("input", "post_attention")}
    assert norms(build("mixtral")) == blocks | {"model.norm"}


class Rooted(nn.Module):
    """A norm that is not called one."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g + self.shift


class Centred(nn.LayerNorm):
    """One of torch's, under another name."""


class Squashed(nn.Module):
    """Weights for each channel, and no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(0.5 * hidden) * self.weight + self.bias


@pytest.mark.parametrize(("kind", "found"), [(Rooted, True), (lambda: Centred(8), True), (Squashed, False)])
def test_norms_are_known_by_what_they_compute(kind: Callable[[], nn.Module], found: bool) -> None:
    model = Experts("gate")
    for block in model.blocks:
        block.norm = kind()
    assert ({"blocks.0.norm", "blocks.1.norm"} <= norms(model)) == found


def test_what_a_norm_adds_is_left_alone() -> None:
    """By what it does: it is called otherwise than biases are."""
    model = Experts("gate")
    model.blocks[0].norm = norm = Rooted()
    training = ns.NoisyTraining(model, ns.NormWeightNoise(0.5))
    with training.step(0):
        model(torch.ones(1, 3, 8))
        assert not torch.equal(norm.g, torch.ones(8))
        assert torch.equal(norm.shift, torch.zeros(8))


def test_two_weights_of_one_norm_have_draws_of_their_own() -> None:
    class Twice(Rooted):
        def forward(self, hidden: Tensor) -> Tensor:
            return super().forward(hidden) * (1 + self.shift) - self.shift

    model = Experts("gate")
    model.blocks[0].norm = norm = Twice()
    with ns.NoisyTraining(model, ns.NormWeightNoise(0.5)).step(0):
        model(torch.ones(1, 3, 8))
        assert not torch.equal(norm.g - 1, norm.shift)


def test_a_model_without_norms_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    run = trainer(tmp_path, ns.NoiseCallback(ns.NormWeightNoise(0.05)), model=model)
    expected = r"^all sites: Sequential has no norms; noise in norm weights needs a model that has$"
    with pytest.raises(NothingMatched, match=expected):
        run.train()


def test_norms_without_weights_are_refused() -> None:
    expected = r"^all sites: the 7 norms of OlmoForCausalLM have no weights; use OperatorNoise with operators=.*$"
    with pytest.raises(NothingMatched, match=expected):
        norms(build("olmo"))
    training = ns.NoisyTraining(build("olmo"), ns.OperatorNoise(0.05, operators=["norm"]))
    with training.step(0):
        training.model(torch.tensor([[3, 4, 5]]))
    assert training.history[0].dose == pytest.approx(0.05, rel=0.1)


def test_a_selection_that_means_no_norm_is_refused() -> None:
    with pytest.raises(
        NothingMatched, match=r"^modules \*q_proj: none of the 7 norms of LlamaForCausalLM is meant; .*$"
    ):
        norms(build("llama"), modules="*q_proj")
