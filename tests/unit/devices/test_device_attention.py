"""Fused attention: opened in steps where a device computes one of them in its own way, and kept where it does not."""

import pytest
import torch
import torch.nn.functional as F
from seen import DTYPES, bits, by_device, lively, numbers
from torch import Tensor

from families import tokens
from noisescope.devices import emulate
from noisescope.sites import Site

pytestmark = pytest.mark.usefixtures("one_thread")


def operands(dtype: torch.dtype, length: int = 40) -> list[Tensor]:
    return [numbers(2, 4, length, 16, dtype=dtype, seed=seed) for seed in range(3)]


def masks(length: int = 40) -> dict[str, dict]:
    dead = torch.ones(length, length, dtype=torch.bool).tril()
    dead[3] = False
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "dead row": {"attn_mask": dead},
        "additive": {"attn_mask": numbers(length, length, seed=9), "scale": 0.3},
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", masks())
def test_online_attention_is_attention(mask: str, dtype: torch.dtype) -> None:
    given, options = operands(dtype), masks()[mask]
    options = {
        name: one.to(dtype) if name == "attn_mask" and one.is_floating_point() else one for name, one in options.items()
    }
    found, device = by_device("online_attention", lambda *qkv: F.scaled_dot_product_attention(*qkv, **options), *given)
    wide = {
        name: one.double() if torch.is_tensor(one) and one.is_floating_point() else one for name, one in options.items()
    }
    exact = F.scaled_dot_product_attention(*(one.double() for one in given), **wide)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)
    assert device.calls == 1


def rounded(value: Tensor) -> Tensor:
    return value.bfloat16().double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_products_of_a_kernel_are_accumulated_narrowly(dtype: torch.dtype) -> None:
    """Sixteen terms are one block, so the sums are rounded once: easily written down.

    Elements that come out alike with and without the rounding are those of the kernel.
    """
    query, key, value = operands(dtype, length=16)
    found, device = by_device("bf16_accumulation", F.scaled_dot_product_attention, query, key, value)
    scores = rounded(query.double() @ key.double().transpose(-2, -1))
    slow = rounded(torch.softmax(scores / 4, -1) @ value.double()).to(dtype)
    healthy = F.scaled_dot_product_attention(query.double(), key.double(), value.double()).to(dtype)
    slow = torch.where(slow == healthy, F.scaled_dot_product_attention(query, key, value), slow)
    assert (found != slow).double().mean() < 0.01  # where float32 and float64 fall on two sides of a tie
    assert device.first_changed.operator == "matmul"
    assert device.first_changed.call == 0
    assert not device.inert


@pytest.mark.parametrize(
    ("name", "operator"), [("tf32", "matmul"), ("exp_table", "softmax"), ("reduction_order", "matmul")]
)
def test_a_model_with_fused_attention_is_changed_inside(name: str, operator: str) -> None:
    model = lively("llama", attn="sdpa")
    with emulate(model, f"{name}@1.self_attn.{operator}") as device, torch.no_grad():
        model(**tokens())
    assert device.first_changed == Site(1, operator, "model.layers.1.self_attn")


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_attention_as_a_place_is_all_that_is_in_it(attn: str) -> None:
    model = lively("llama", attn=attn)
    with emulate(model, "bf16_accumulation@1.attention") as device, torch.no_grad():
        model(**tokens())
    assert device.first_changed.layer == 1
    assert device.members[0].calls == 1


def test_a_step_that_changes_nothing_leaves_the_kernels_bits() -> None:
    """Whole numbers of few bits have products that no order and no ten bits can change."""
    query, key = (
        torch.randint(-3, 4, (1, 2, 6, 8), generator=torch.Generator().manual_seed(at)).float() for at in (0, 1)
    )
    value = torch.ones(1, 2, 6, 8)

    def sdpa(*qkv: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*qkv)

    clean = sdpa(query, key, value)
    found, device = by_device("tf32", sdpa, query, key, 0 * value)
    assert torch.equal(bits(found), bits(sdpa(query, key, 0 * value)))
    assert (device.inert, device.calls) == (True, 1)
    assert clean.shape == found.shape


def test_a_kernel_that_drops_out_stays_whole() -> None:
    query, key, value = operands(torch.float32, length=8)

    def dropping(*qkv: Tensor) -> Tensor:
        torch.manual_seed(0)
        return F.scaled_dot_product_attention(*qkv, dropout_p=0.5)

    found, device = by_device("exp_table", dropping, query, key, value)
    assert torch.equal(found, dropping(query, key, value))
    assert device.inert


def test_values_are_laid_out_as_the_kernel_does() -> None:
    query, key, value = (one.transpose(1, 2) for one in operands(torch.float32))
    clean = F.scaled_dot_product_attention(query, key, value)
    found, _ = by_device("exp_table", F.scaled_dot_product_attention, query, key, value)
    assert found.stride() == clean.stride()
