"""Other exponentials, casts of norms and flushed denormals, each against a slow computation."""

from math import exp, pi, sqrt, tanh

import pytest
import torch
import torch.nn.functional as F
from seen import DTYPES, by_device, lively, numbers
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from families import tokens
from noisescope.devices import emulate

pytestmark = pytest.mark.usefixtures("one_thread")

STEP = 1 / 16
TINY = 2.0**-126


def table(x: float) -> float:
    return exp(round(x / STEP) * STEP)


def logistic(x: float) -> float:
    return 1 / (1 + table(-x)) if x >= 0 else table(x) / (1 + table(x))


def one_by_one(function, given: Tensor) -> Tensor:
    return torch.tensor([function(one) for one in given.double().flatten().tolist()]).reshape(given.shape)


# --- from a table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", [torch.softmax, F.softmax, Tensor.softmax])
def test_softmax_looks_its_exponentials_up(call, dtype: torch.dtype) -> None:
    given = numbers(7, 9, dtype=dtype) * 3
    found, device = by_device("exp_table", lambda x: call(x, dim=-1), given)
    rows = []
    for row in given.tolist():
        weights = [table(one - max(row)) for one in row]
        rows.append([weight / sum(weights) for weight in weights])
    torch.testing.assert_close(found, torch.tensor(rows).to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
    assert not device.inert


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("call", "slow"),
    [
        (torch.exp, table),
        (torch.sigmoid, logistic),
        (F.silu, lambda x: x * logistic(x)),
        (
            lambda x: F.gelu(x, approximate="tanh"),
            lambda x: x * logistic(2 * sqrt(2 / pi) * (x + 0.044715 * x**3)),
        ),
    ],
    ids=["exp", "sigmoid", "silu", "gelu"],
)
def test_activations_look_their_exponentials_up(call, slow, dtype: torch.dtype) -> None:
    given = numbers(300, dtype=dtype)
    found, device = by_device("exp_table", call, given)
    close = torch.isclose(found, one_by_one(slow, given).to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
    assert int((~close).sum()) <= 2  # where rounding decides which entry is the nearest
    assert not device.inert


def test_a_gelu_by_erf_has_no_exponential() -> None:
    given = numbers(50)
    found, device = by_device("exp_table", F.gelu, given)
    assert torch.equal(found, F.gelu(given))
    assert device.inert


def test_hand_written_activations_too() -> None:
    with emulate(lively("bloom"), "exp_table@1.gelu") as device, torch.no_grad():
        lively("bloom")(**tokens("bloom"))
        assert device.inert  # another model is another device
    model = lively("bloom")
    with emulate(model, "exp_table@1.gelu") as device, torch.no_grad():
        model(**tokens("bloom"))
    assert device.first_changed.operator == "gelu"
    assert (device.first_changed.layer, device.members[0].calls) == (1, 1)


# --- two units off ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [torch.exp, torch.tanh, torch.sin, torch.cos, F.silu, F.gelu, torch.erf])
def test_functions_are_two_units_off_and_no_more(call) -> None:
    given = numbers(2000)
    found, device = by_device("approximate_functions", call, given)
    exact = call(given.double())
    unit = torch.ldexp(
        torch.full_like(exact, 2.0**-23), torch.frexp(torch.maximum(exact.abs(), found.double().abs()))[1] - 1
    )
    off = ((found.double() - exact) / unit).abs()
    assert 1.0 <= float(off.max()) <= 2.0 + 1e-6
    assert not device.inert


def test_so_is_softmax() -> None:
    given = numbers(20, 30)
    found, device = by_device("approximate_functions", lambda x: F.softmax(x, -1), given)
    torch.testing.assert_close(found.double(), torch.softmax(given.double(), -1), rtol=8e-7, atol=0)
    assert not device.inert


# --- norms ------------------------------------------------------------------------------------------------------


def norm(dtype: torch.dtype) -> nn.Module:
    module = LlamaRMSNorm(48, 1e-6)
    module.weight.data = 1 + 0.3 * numbers(48, seed=5)
    return module.to(dtype)


class Normed(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(module, nn.Identity())])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_hand_written_norm_is_cast_once(dtype: torch.dtype) -> None:
    module, given = norm(dtype), numbers(40, 48, dtype=dtype)
    model = Normed(module)
    with emulate(model, "fused_norm_casts", blocks="layers") as device, torch.no_grad():
        found = model(given)
    x = given.double()
    exact = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.weight.double()
    off = (found != exact.to(dtype)).double().mean()
    assert off < 0.005  # what float32 rounds otherwise than float64
    assert (module(given) != exact.to(dtype)).double().mean() > 0.1
    assert not device.inert


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_fused_norm_is_cast_in_steps(dtype: torch.dtype) -> None:
    given, weight, bias = (
        numbers(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate([(40, 48), (48,), (48,)])
    )
    found, device = by_device("stepwise_norm_casts", lambda x: F.layer_norm(x, (48,), weight, bias, 1e-5), given)
    x = given.double()
    normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    steps = ((normal.to(dtype).double() * weight.double()).to(dtype).double() + bias.double()).to(dtype)
    assert (found != steps).double().mean() < 0.005
    assert not device.inert
    scaled, device = by_device("stepwise_norm_casts", lambda x: F.rms_norm(x, (48,), weight), given)
    normal = x / (x.square().mean(-1, keepdim=True) + torch.finfo(dtype).eps).sqrt()
    assert not device.inert
    torch.testing.assert_close(scaled.double(), normal * weight.double(), rtol=3 * torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("name", ["fused_norm_casts", "stepwise_norm_casts"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_casts_are_inert_in_float32(family: str, name: str) -> None:
    model = lively(family)
    with emulate(model, name) as device, torch.no_grad():
        model(**tokens(family))
    assert (device.inert, device.members[0].calls) == (True, 0)


# --- denormals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_subnormal_results_are_zero(dtype: torch.dtype) -> None:
    given = torch.tensor([1.0, TINY, TINY / 2, -TINY / 4, 0.0, -TINY, torch.nan], dtype=dtype)
    found, device = by_device("flush_denormals", lambda x: x * 0.5, given)
    slow = [0.0 if abs(one) < TINY else one * 0.5 for one in given.tolist()]
    slow = [0.0 if abs(one) < TINY else one for one in slow]
    assert found.tolist()[:-1] == slow[:-1]
    assert bool(found[-1].isnan())
    assert device.changed == int(sum(0 < abs(one) * 0.5 < TINY for one in given.tolist()[:-1]))


def test_subnormal_operands_are_zero() -> None:
    """The product of a subnormal with a large number would be normal."""
    given = torch.tensor([[TINY / 2, 1.0]])
    found, device = by_device("flush_denormals", lambda x: x @ torch.tensor([[2.0**100], [0.0]]), given)
    assert found.item() == 0.0
    assert device.changed == 1
    moved, device = by_device("flush_denormals", lambda x: torch.cat([x, x]), given)
    assert torch.equal(moved, torch.cat([given, given]))  # nothing is computed
    assert device.inert


def test_float16_has_no_number_that_small() -> None:
    given = torch.tensor([2.0**-24, 2.0**-20], dtype=torch.float16)
    found, device = by_device("flush_denormals", lambda x: x * 1.5, given)
    assert torch.equal(found, given * 1.5)
    assert device.inert


def test_tanh_is_not_meant_by_the_table() -> None:
    found, _ = by_device("exp_table", torch.tanh, numbers(10))
    assert found.tolist() == pytest.approx([tanh(one) for one in numbers(10).tolist()], rel=1e-6)
