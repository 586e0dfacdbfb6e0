"""Every way to multiply against a slow computation that shares nothing with it."""

import struct

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seen import DTYPES, by_device, numbers
from torch import Tensor

from noisescope.devices.products import LANES, round_to_tf32

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 16
NARROW = {"bf16_accumulation": ml_dtypes.bfloat16, "fp16_accumulation": np.float16}
M, K, N = 3, 40, 5


def spellings(dtype: torch.dtype) -> dict[str, tuple]:
    """The same product in every spelling, with the addend that some have."""
    left, right, addend = (
        numbers(M, K, dtype=dtype),
        numbers(K, N, dtype=dtype, seed=1),
        numbers(N, dtype=dtype, seed=2),
    )
    return {
        "linear": (lambda a, b: F.linear(a, b.T), left, right, None),
        "linear with bias": (lambda a, b: F.linear(a, b.T, addend), left, right, addend),
        "matmul": (torch.matmul, left, right, None),
        "@": (lambda a, b: a @ b, left, right, None),
        "mm": (torch.mm, left, right, None),
        "bmm": (lambda a, b: torch.bmm(a[None], b[None])[0], left, right, None),
        "addmm": (lambda a, b: torch.addmm(addend, a, b), left, right, addend),
        "addmm_": (lambda a, b: addend.expand(M, N).clone().addmm_(a, b), left, right, addend),
        "baddbmm": (lambda a, b: torch.baddbmm(addend.expand(1, M, N), a[None], b[None])[0], left, right, addend),
        "einsum": (lambda a, b: torch.einsum("mk,kn->mn", a, b), left, right, None),
    }


SPELLINGS = tuple(spellings(torch.float32))


def accumulated(left: Tensor, right: Tensor, addend: Tensor | None, narrow: type) -> np.ndarray:
    """Element by element: blocks of sixteen in float32, the sum so far rounded to the narrow type."""
    a, b = left.double().numpy(), right.double().numpy()
    found = np.zeros((a.shape[0], b.shape[1]))
    for i, j in np.ndindex(found.shape):
        total = 0.0 if addend is None else float(addend[j])
        for start in range(0, a.shape[1], BLOCK):
            block = sum(a[i, k] * b[k, j] for k in range(start, min(start + BLOCK, a.shape[1])))
            total = float(np.float32(total + block).astype(narrow))
        found[i, j] = total
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_accumulator_rounds_after_every_block(name: str, spelling: str, dtype: torch.dtype) -> None:
    call, left, right, addend = spellings(dtype)[spelling]
    found, device = by_device(name, call, left, right)
    slow = torch.from_numpy(accumulated(left, right, addend, NARROW[name])).to(dtype)
    one_step = 2.0 ** -(7 if name.startswith("bf16") else 10)  # a sum in float32 may fall on the other side of a tie
    assert found.dtype == dtype
    assert int((found == slow).sum()) >= slow.numel() - 1
    torch.testing.assert_close(found, slow, rtol=one_step, atol=0.0)
    assert not device.inert


def test_sixteen_ones_are_lost_in_a_large_narrow_sum() -> None:
    """256 + 1 is 256 in bfloat16, but 256 + 16 is not: terms that come one block at a time."""
    left = torch.tensor([[256.0] + [0.0] * 15 + [1.0] + [0.0] * 15 + [1.0] * 16])
    found, _ = by_device("bf16_accumulation", torch.matmul, left, torch.ones(48, 1))
    assert found.item() == 256.0 + 16.0  # and not 273
    large, _ = by_device("fp16_accumulation", torch.matmul, torch.full((1, 32), 4096.0), torch.ones(32, 1))
    assert large.item() == torch.inf  # the largest float16 is 65504


# --- tf32 -------------------------------------------------------------------------------------------------------


def ten_bits(value: float) -> float:
    """By the bits: half of the last kept place is added, ties to even, then thirteen bits are masked off."""
    (word,) = struct.unpack("<I", struct.pack("<f", value))
    keep, rest = word & ~0x1FFF, word & 0x1FFF
    up = rest > 0x1000 or (rest == 0x1000 and bool(keep & 0x2000))
    (found,) = struct.unpack("<f", struct.pack("<I", keep + (0x2000 if up else 0)))
    return found


def test_factors_have_ten_bits() -> None:
    given = torch.cat(
        [numbers(500), numbers(500, seed=1) * 1e30, torch.tensor([0.0, -0.0, 1 + 2**-11, 1 + 3 * 2**-11])]
    )
    assert round_to_tf32(given).tolist() == [ten_bits(one) for one in given.tolist()]
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert torch.equal(round_to_tf32(odd)[:2], odd[:2])
    assert bool(round_to_tf32(odd)[2].isnan())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tf32_multiplies_factors_of_ten_bits(spelling: str) -> None:
    call, left, right, addend = spellings(torch.float32)[spelling]
    found, device = by_device("tf32", call, left, right)
    a, b = (torch.tensor([[ten_bits(one) for one in row] for row in rows.tolist()]).double() for rows in (left, right))
    exact = a @ b + (0 if addend is None else addend.double())
    torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=2e-6)
    assert not device.inert
    assert (found.double() - (left.double() @ right.double())).abs().max() > 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_tf32_is_a_mode_of_float32(dtype: torch.dtype) -> None:
    left, right = numbers(M, K, dtype=dtype), numbers(K, N, dtype=dtype, seed=1)
    found, device = by_device("tf32", torch.matmul, left, right)
    assert torch.equal(found, left @ right)
    assert (device.inert, device.calls) == (True, 0)


# --- orders -----------------------------------------------------------------------------------------------------


def shares(a: list[float], b: list[float]) -> list[np.float32]:
    """What each unit sums: a quarter of the terms, in multiples of four."""
    size = max(4, -(-len(a) // LANES // 4) * 4)
    terms = np.array(a, np.float64) * np.array(b, np.float64)
    return [np.float32(terms[start : start + size].sum()) for start in range(0, len(a), size)]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_order_is_as_near_to_the_truth(spelling: str) -> None:
    call, left, right, addend = spellings(torch.float32)[spelling]
    found, device = by_device("reduction_order", call, left, right)
    exact = left.double() @ right.double() + (0 if addend is None else addend.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert not device.inert


def test_the_order_is_the_one_that_is_stated() -> None:
    row = [1e8] + [0.0] * 7 + [1.0] + [0.0] * 7 + [-1e8] + [0.0] * 7 + [3.0] + [0.0] * 7  # one number a share
    ones = torch.ones(32, 1)
    parts = shares(row, [1.0] * 32)
    assert [float(part) for part in parts] == [1e8, 1.0, -1e8, 3.0]
    total = np.float32(0)
    for part in reversed(parts):
        total = np.float32(total + part)
    found, _ = by_device("reduction_order", torch.matmul, torch.tensor([row]), ones)
    assert found.item() == float(total)


@pytest.mark.parametrize("name", ["reduction_order", "racing_sums"])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("call", [torch.sum, torch.mean])
def test_sums_too(call, keepdim: bool, name: str) -> None:
    given = numbers(6, 333, 2)
    found, device = by_device(name, lambda x: call(x, 1, keepdim=keepdim), given)
    torch.testing.assert_close(found, call(given.double(), 1, keepdim=keepdim).float(), rtol=1e-5, atol=1e-5)
    assert device.calls == 1


def test_sums_of_everything_are_left_alone() -> None:
    given = numbers(4, 5)
    found, device = by_device("reduction_order", torch.sum, given)
    assert torch.equal(found, given.sum())
    assert device.calls == 0


def test_racing_sums_come_out_in_another_order_each_time_but_alike_for_a_seed() -> None:
    left, right = numbers(64, 512), numbers(512, 64, seed=1)

    def often(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([a @ b for _ in range(4)])

    one, _ = by_device("racing_sums", often, left, right, seed=3)
    assert not torch.equal(one, one[:1].expand_as(one))
    assert torch.equal(one, by_device("racing_sums", often, left, right, seed=3)[0])
    same, _ = by_device("reduction_order", often, left, right)
    assert torch.equal(same, same[:1].expand_as(same))


# --- what is left alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16_accumulation", "tf32", "reduction_order"])
def test_a_product_that_cannot_be_taken_apart_stays(name: str) -> None:
    given = numbers(4, 4)
    for call in (lambda x: torch.einsum("ij,jk,kl->il", x, x, x), lambda x: torch.einsum("ij->ji", x) * 1):
        found, device = by_device(name, call, given)
        assert torch.equal(found, call(given))
        assert device.inert


@pytest.mark.parametrize("name", ["bf16_accumulation", "tf32", "reduction_order"])
def test_a_product_of_nothing_is_nothing(name: str) -> None:
    found, device = by_device(name, torch.matmul, torch.ones(2, 0), torch.ones(0, 3))
    assert torch.equal(found, torch.zeros(2, 3))
    assert device.inert
