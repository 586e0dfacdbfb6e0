"""Faults of the value against the formulas of their table, element by element in plain Python."""

import struct
from dataclasses import replace
from math import sqrt

import pytest
import torch
from one_call import ROWS, WIDTH, OneCall, broken, product, same_bits
from torch import Tensor

from noisescope.faults import FAULTS, FaultSimulator, Struck

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHARES = (1.0, 0.1, 0.01, 1 / WIDTH)
STORED = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10}


def dead_zone(h: list[float], m: float, *_) -> list[float]:
    top = max(abs(x) for x in h)
    return [0.0 if abs(x) < m * top else x for x in h]


def saturation(h: list[float], m: float, *_) -> list[float]:
    limit = (1 - m) * max(abs(x) for x in h)
    return [max(-limit, min(limit, x)) for x in h]


def bias(h: list[float], m: float, *_) -> list[float]:
    mean = sum(h) / len(h)
    std = sqrt(sum((x - mean) ** 2 for x in h) / len(h))
    return [x + m * std for x in h]


def gain(h: list[float], m: float, *_) -> list[float]:
    return [x * (1 + m) for x in h]


def wrong_rounding(h: list[float], m: float, dtype: torch.dtype) -> list[float]:
    dropped = 23 - (STORED[dtype] - int(m))  # of the float32 that is about to be cast
    return [float32(bits(x) >> dropped << dropped) for x in h]


FORMULAS = {formula.__name__: formula for formula in (dead_zone, saturation, bias, gain, wrong_rounding)}


def bits(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def float32(pattern: int) -> float:
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def channels_of(seed: int, share: float) -> Tensor:
    """The channels that a share strikes: those that change under a large gain."""
    model, hidden, clean = product(torch.float32)
    value, _ = broken(model, hidden, "gain", 1.0, sparsity=share, seed=seed)
    return (value != clean).any(0).any(0).nonzero().flatten()


# --- the formulas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", FORMULAS)
def test_a_fault_is_its_formula(kind, dtype, share):
    model, hidden, wide = product(dtype)
    clean = model(hidden)
    value, fault = broken(model, hidden, kind, sparsity=share, seed=3)
    at = channels_of(3, share)
    assert len(at) == max(1, round(share * WIDTH))
    rest = torch.ones(WIDTH, dtype=torch.bool).index_fill(0, at, False)
    assert same_bits(value[..., rest], clean[..., rest])
    before = wide if FAULTS[kind].before_cast else clean.float()
    due = FORMULAS[kind](before[..., at].flatten().tolist(), FAULTS[kind].documented, dtype)
    got = value[..., at].flatten()
    assert value.shape == clean.shape
    assert value.dtype == dtype
    expected = torch.tensor(due, dtype=torch.float64)
    torch.testing.assert_close(got, expected.to(dtype), rtol=2.0 ** -STORED[dtype], atol=1e-6)
    if kind in ("dead_zone", "wrong_rounding"):  # nothing is rounded here
        assert torch.equal(got.double(), expected)
    assert fault.changed == int((value != clean).sum())
    assert fault.elements == clean.numel()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_thresholds_may_be_absolute(dtype):
    model, hidden, _ = product(dtype)
    clean = model(hidden)
    value, _ = broken(model, hidden, "dead_zone", 2.5, absolute=True)
    assert value.flatten().tolist() == [0.0 if abs(x) < 2.5 else x for x in clean.flatten().tolist()]
    value, _ = broken(model, hidden, "saturation", 2.5, absolute=True)
    assert value.flatten().tolist() == [max(-2.5, min(2.5, x)) for x in clean.flatten().tolist()]


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_noise_is_gaussian_of_the_mean_magnitude(share):
    model, hidden, clean = product(torch.float32)
    value, _ = broken(model, hidden, "noise", 0.1, sparsity=share, seed=3)
    at = channels_of(3, share)
    scale = 0.1 * sum(abs(x) for x in clean[..., at].flatten().tolist()) / (ROWS * len(at))
    draws = (value - clean)[..., at].flatten() / scale
    assert abs(float(draws.mean())) < 4.5 / sqrt(len(draws))
    assert abs(float(draws.std()) - 1) < 4.5 / sqrt(2 * len(draws))
    expected = torch.randn(ROWS, len(at), generator=torch.Generator().manual_seed(3)).flatten()
    torch.testing.assert_close(draws, expected, rtol=1e-4, atol=1e-4)


def test_spikes_strike_their_share_and_have_their_size():
    value = torch.randn(1000, WIDTH, generator=torch.Generator().manual_seed(0))
    struck = Struck(value, 10.0, False, torch.float32, torch.Generator().manual_seed(5))
    after = FAULTS["spike"].act(struck)
    off = after != value
    count, due = int(off.sum()), value.numel() * 0.01 * 10.0
    assert abs(count - due) < 4.5 * sqrt(due)
    sizes = after[off] / (10 * max(abs(x) for x in value.flatten().tolist()))
    assert abs(float(sizes.std()) - 1) < 4.5 / sqrt(2 * count)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_bit_flips_invert_one_bit_of_a_share_of_the_elements(dtype):
    model, hidden, _ = product(dtype)
    clean = model(hidden)
    value, fault = broken(model, hidden, "bit_flip", 0.2, seed=1)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    apart = (value.view(integer) ^ clean.view(integer)).flatten().tolist()
    known = [number for number, x in zip(apart, value.flatten().tolist(), strict=True) if x == x]
    if dtype != torch.float64:  # whose elements are flipped as float32
        assert {bin(number & (2 ** (8 * dtype.itemsize) - 1)).count("1") for number in known} == {0, 1}
    n = clean.numel()
    assert abs(fault.changed - 0.2 * n) < 4.5 * sqrt(n * 0.2 * 0.8)
    assert sum(number != 0 for number in apart) == fault.changed


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_stuck_channels_are_zero_and_always_the_same(share):
    model, hidden, clean = product(torch.float32)
    with FaultSimulator(model, "0", "stuck_at", 0.05, share, 3, inputs={"hidden": hidden}):
        values = [model(hidden + 0.1 * again) for again in range(4)]
    stuck = [(value == 0).all(0).all(0).nonzero().flatten().tolist() for value in values]
    assert len(stuck[0]) == max(1, round(0.05 * share * WIDTH))
    assert stuck == [stuck[0]] * 4
    assert set(stuck[0]) <= set(channels_of(3, share).tolist())
    rest = [channel for channel in range(WIDTH) if channel not in stuck[0]]
    assert same_bits(values[0][..., rest], clean[..., rest])


# --- before the cast --------------------------------------------------------------------------------------------


def smallest_gain(dtype=torch.bfloat16) -> FaultSimulator:
    model, hidden, _ = product(dtype)
    return broken(model, hidden, "gain", 0.001)[1]


def test_a_small_gain_acts_before_the_cast(monkeypatch):
    assert not smallest_gain().inert
    monkeypatch.setitem(FAULTS, "gain", replace(FAULTS["gain"], before_cast=False))
    assert smallest_gain().inert  # every element rounds back


def test_rounding_acts_before_the_cast(monkeypatch):
    hidden = torch.tensor([[1.9921875, 0.005859375]], dtype=torch.bfloat16)  # their sum rounds up to 2
    model = OneCall(lambda value: value @ torch.ones(2, 1, dtype=torch.bfloat16))
    assert model(hidden).item() == 2.0
    assert broken(model, hidden, "wrong_rounding", 1)[0].item() == 1.984375
    monkeypatch.setitem(FAULTS, "wrong_rounding", replace(FAULTS["wrong_rounding"], before_cast=False))
    assert broken(model, hidden, "wrong_rounding", 1)[0].item() == 2.0


@pytest.mark.parametrize(
    ("kind", "magnitude"), [("gain", 0.001), ("wrong_rounding", 2), ("low_precision_accumulate", 7)]
)
def test_under_autocast_it_is_the_fault_of_the_narrow_product(kind, magnitude):
    model, hidden, _ = product(torch.float32)
    narrow, same, _ = product(torch.bfloat16)  # the same numbers, rounded
    due, _ = broken(narrow, same, kind, magnitude)
    with torch.autocast("cpu", torch.bfloat16):
        value, fault = broken(model, hidden, kind, magnitude)
    assert value.dtype == torch.bfloat16
    assert torch.equal(value, due)
    assert not fault.inert


# --- odd values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [name for name, row in FAULTS.items() if row.act is not None])
def test_what_is_not_finite_does_not_decide_for_the_others(kind):
    value = torch.tensor([[1.0, -2.0, float("inf")], [0.5, float("nan"), 1.5]])
    struck = Struck(value, FAULTS[kind].documented, False, torch.float32, torch.Generator().manual_seed(0))
    after = FAULTS[kind].act(struck)
    finite = value.isfinite()
    assert after[finite].isfinite().all()


@pytest.mark.parametrize("kind", [name for name, row in FAULTS.items() if row.act is not None])
@pytest.mark.parametrize("shape", [(0, 4), (1,), (1, 1), (3, 1)])
def test_every_shape_is_kept(kind, shape):
    model = OneCall(lambda value: value * 2)
    with FaultSimulator(model, "0", kind, inputs={"hidden": torch.ones(2, 4)}):
        assert model(torch.ones(shape)).shape == torch.Size(shape)


def test_tiny_numbers_lose_their_last_bits_only():
    tiny = torch.tensor([[1.0e-38, 3.0e-39, 1.1e-44, -0.0]])
    model = OneCall(lambda value: value * 1)
    value, _ = broken(model, tiny, "wrong_rounding", 4)
    assert (value - tiny).abs().max() <= 1.0e-38 * 2**-18
    assert float(value[0, 1]) > 2.9e-39
