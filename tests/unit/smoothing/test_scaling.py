"""The formula, the error and the choice, each against the slow obvious way."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from noisescope.noise.formats import parse_format
from noisescope.smoothing.calibrating import Inputs
from noisescope.smoothing.groups import Group
from noisescope.smoothing.scaling import ALPHAS, Formats, choose, outlier_ratio, scales_of

INT8 = Formats(parse_format("int8"), parse_format("int8"))


def group_of(*consumers: nn.Linear, channels: Tensor | None = None) -> Group:
    width = consumers[0].in_features
    channels = torch.arange(width) if channels is None else channels
    norm = nn.RMSNorm(int(channels.max()) + 1)
    names = ("norm", *(f"linear{number}" for number in range(len(consumers))))
    return Group(0, norm, consumers, names, channels, len(norm.weight), 0.0)


def inputs_of(tokens: Tensor, largest: Tensor | None = None) -> Inputs:
    stream = 3 + torch.arange(len(tokens)).float()
    return Inputs(tokens.abs().amax(0) if largest is None else largest, tokens, stream, torch.arange(len(tokens)) // 4)


@pytest.fixture
def torch_seed() -> None:
    torch.manual_seed(0)


pytestmark = pytest.mark.usefixtures("torch_seed")


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_formula(alpha: float) -> None:
    one, two = nn.Linear(6, 5), nn.Linear(6, 3)
    group, tokens = group_of(one, two), torch.randn(40, 6)
    found = scales_of(group, inputs_of(tokens), alpha)
    for j in range(6):
        x = max(abs(float(value)) for value in tokens[:, j])
        w = max(abs(float(value)) for linear in (one, two) for value in linear.weight.detach()[:, j])
        assert float(found[j]) == pytest.approx(x**alpha / w ** (1 - alpha), rel=1e-6)


def test_inputs_that_share_a_channel_have_one_scale() -> None:
    linear, tokens = nn.Linear(4, 5), torch.randn(40, 4)
    found = scales_of(group_of(linear, channels=torch.tensor([0, 0, 1, 1])), inputs_of(tokens), 0.5)
    for j, pair in enumerate((slice(0, 2), slice(2, 4))):
        x, w = float(tokens[:, pair].abs().max()), float(linear.weight.detach()[:, pair].abs().max())
        assert float(found[j]) == pytest.approx((x / w) ** 0.5)


def test_dead_channels_are_left_alone() -> None:
    linear, tokens = nn.Linear(4, 5), torch.randn(40, 4)
    tokens[:, 1] = 0
    linear.weight.data[:, 2] = 0
    for alpha in ALPHAS:
        found = scales_of(group_of(linear), inputs_of(tokens), alpha)
        assert bool(found.isfinite().all())
        assert found[1] == found[2] == 1


def test_powers_of_two() -> None:
    group, inputs = group_of(nn.Linear(6, 5)), inputs_of(torch.randn(40, 6) * torch.logspace(-3, 3, 6))
    plain, exact = (scales_of(group, inputs, 0.7, powers_of_two=asked) for asked in (False, True))
    assert torch.equal(exact.log2(), exact.log2().round())
    assert float((plain / exact).log2().abs().max()) <= 0.5 + 1e-6


@pytest.mark.parametrize("feeding", ["norm", "linear"])
@pytest.mark.parametrize("activations", ["int8", "int8:tensor"])
def test_the_error_is_that_of_the_rounded_product(activations: str, feeding: str) -> None:
    """Element by element, with int8 written out."""
    linear, tokens = nn.Linear(6, 5), torch.randn(8, 6)
    largest = tokens.abs().amax(0) * 1.5  # other tokens of the data were larger
    group, formats = group_of(linear), Formats(parse_format("int8"), parse_format(activations))
    group = replace(group, offset=0.0 if feeding == "norm" else None)
    alphas = (0.5,)
    found = choose(group, inputs_of(tokens, largest), formats, alphas=alphas, powers_of_two=False, forced=True)

    def relative_error(scales: Tensor) -> float:
        shares = []
        everywhere = (largest / scales).max()
        for number, row in enumerate(tokens):
            total = signal = 0.0
            x = _int8(row / scales, everywhere if activations == "int8:tensor" else None)
            for own in linear.weight.detach():
                value = sum(float(a) * float(b) for a, b in zip(x, _int8(own * scales), strict=True))
                truth = sum(float(a) * float(b) for a, b in zip(row, own, strict=True))
                total, signal = total + (value - truth) ** 2, signal + truth**2
            shares.append(total / (signal if feeding == "norm" else 3 + number))
        return sum(shares) / len(shares)

    assert found.before.value == pytest.approx(relative_error(torch.ones(6)), rel=1e-3)
    assert found.after.value == pytest.approx(relative_error(found.scales), rel=1e-3)
    assert found.alpha == 0.5


def _int8(values: Tensor, largest: Tensor | None = None) -> Tensor:
    step = (values.abs().max() if largest is None else largest) / 127.5
    return (values * (1.0 / step)).round().clamp(-128, 127) * step


def test_the_best_alpha_is_taken() -> None:
    tokens = torch.randn(64, 32) * torch.where(torch.arange(32) == 3, 80.0, 1.0)
    group, inputs = group_of(nn.Linear(32, 16)), inputs_of(tokens)
    found = choose(group, inputs, INT8, alphas=ALPHAS, powers_of_two=False, forced=False)
    alone = {
        alpha: choose(group, inputs, INT8, alphas=(alpha,), powers_of_two=False, forced=True).after.value
        for alpha in ALPHAS
    }
    assert found.alpha == min(alone, key=alone.__getitem__)
    assert found.after.value == alone[found.alpha] < found.before.value / 3
    assert outlier_ratio(inputs.largest) > 50
    assert outlier_ratio(inputs.largest / group.spread(found.scales)) < 30


def test_tokens_count_alike() -> None:
    """A token that one channel makes ten thousand times larger does not spoil the others for its own product."""
    tokens = torch.randn(64, 32)
    tokens[5, 3] = 1e4
    inputs = Inputs(tokens.abs().amax(0), tokens, tokens.square().sum(1), torch.arange(64) // 4)
    group = replace(group_of(nn.Linear(32, 16)), offset=None)
    found = choose(group, inputs, INT8, alphas=(1.0,), powers_of_two=False, forced=False)
    assert found.alpha is None
    assert torch.equal(found.scales, torch.ones(32))
    assert found.after == found.before


def test_where_there_is_nothing_to_gain() -> None:
    """Ten draws without outliers: it never gets worse, and hardly better."""
    for _ in range(10):
        linear = nn.Linear(64, 32)
        nn.init.normal_(linear.weight)
        inputs = inputs_of(torch.randn(128, 64).clamp(-2, 2))
        found = choose(group_of(linear), inputs, INT8, alphas=ALPHAS, powers_of_two=False, forced=False)
        assert 0.8 * found.before.value < found.after.value <= found.before.value


def test_a_forced_alpha_is_taken_even_if_it_does_harm() -> None:
    tokens = torch.randn(64, 32) * torch.where(torch.arange(32) == 3, 80.0, 1.0)
    found = choose(
        group_of(nn.Linear(32, 16)), inputs_of(tokens), INT8, alphas=(0.0,), powers_of_two=False, forced=True
    )
    assert found.alpha == 0.0


def test_a_group_that_is_always_zero() -> None:
    linear = nn.Linear(4, 3)
    found = choose(
        group_of(linear), inputs_of(torch.zeros(8, 4)), INT8, alphas=ALPHAS, powers_of_two=False, forced=False
    )
    assert found.alpha is None
    assert outlier_ratio(torch.zeros(4)) == 0
