"""Whole formats against torchao, block by block and at every size; blocks, axes, ragged ends, bits and names."""

from math import inf, log10

import pytest
import torch
from torch import Tensor

import format_oracles as oracles
from noisescope.errors import InputError
from noisescope.keys import Key
from noisescope.noise.formats import FORMATS, Quality, parse_format, quality

SIZES = [2.0**power for power in (-100, -60, -20, -8, -1, 0, 3, 20, 60, 100)]


def weights(rows: int = 64, columns: int = 128, size: float = 1.0, seed: int = 0) -> Tensor:
    """Normal numbers whose rows and columns differ in size, with zeros, a block of zeros, and outliers."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(rows, columns, generator=generator)
    value *= torch.exp(torch.randn(rows, 1, generator=generator)) * torch.exp(torch.randn(columns, generator=generator))
    value[0, :32] = 0.0
    value[1, ::7] = 0.0
    value[2, columns // 2] = 40.0
    return value * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", oracles.MX)
def test_mx_formats_are_those_of_torchao(text: str, size: float) -> None:
    value = weights(size=size)
    assert torch.equal(parse_format(text).round(value), oracles.mx(text, value))


@pytest.mark.parametrize("size", SIZES)
def test_nvfp4_is_that_of_torchao(size: float) -> None:
    value = weights(size=size)
    assert torch.equal(parse_format("nvfp4").round(value), oracles.nvfp4(value))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("block", ["tensor", "channel", "group=32", "group=16"])
def test_integers_are_those_of_torchao(bits: int, block: str, symmetric: bool, size: float) -> None:
    value = weights(size=size)
    form = parse_format(f"int{bits}:{block}{'' if symmetric else ',asymmetric'}")
    shape = {"tensor": (64, 128), "channel": (1, 128), "group=32": (1, 32), "group=16": (1, 16)}[block]
    dtype = torch.bfloat16 if block.startswith("group") else torch.float32
    assert torch.equal(form.round(value), oracles.integers(value, bits, shape, symmetric=symmetric, scale_dtype=dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("block", ["tensor", "channel", "group=32"])
def test_float8_is_that_of_torchao(dtype: torch.dtype, block: str, size: float) -> None:
    value = weights(size=size)[1:]  # torchao divides a block of zeros by zero
    value[0, :32] += size
    name = "fp8_e4m3" if dtype is torch.float8_e4m3fn else "fp8_e5m2"
    shape = {"tensor": (63, 128), "channel": (1, 128), "group=32": (1, 32)}[block]
    assert torch.equal(parse_format(f"{name}:{block}").round(value), oracles.float8(value, dtype, shape))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_16_bit_is_a_cast(name: str) -> None:
    value = weights()
    dtype = torch.bfloat16 if name == "bf16" else torch.float16
    assert torch.equal(parse_format(name).round(value), value.to(dtype).float())


@pytest.mark.parametrize("std", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-7])
def test_nvfp4_holds_small_weights_as_well_as_large_ones(std: float) -> None:
    value = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    large, small = quality(parse_format("nvfp4"), value), quality(parse_format("nvfp4"), value * std)
    assert abs(large.sqnr_db - small.sqnr_db) < 0.5
    assert large.sqnr_db > 20


# --- blocks ---------------------------------------------------------------------------------------------------------

EVERY = [*FORMATS, "int4:group=48", "int4:channel,asymmetric", "fp8_e4m3:group=40", "mxfp8:e5m2"]


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("columns", [1, 15, 33, 70, 128])
def test_ragged_ends_are_blocks_of_their_own(text: str, columns: int) -> None:
    """Each block by itself gives what the tensor gives, if the scale of the whole tensor is given to it."""
    form, value = parse_format(text), weights(8, columns)
    block = form.block if isinstance(form.block, int) else columns
    if form.block == "tensor" or form.name == "nvfp4":
        block = columns
    slowly = torch.cat([form.round(part) for part in value.split(block, dim=1)], dim=1)
    assert torch.equal(form.round(value), slowly)


def test_ragged_ends_of_nvfp4() -> None:
    """Zeros at the end change nothing."""
    form, value = parse_format("nvfp4"), weights(8, 70)
    filled = torch.cat([value, torch.zeros(8, 10)], dim=1)
    assert torch.equal(form.round(value), form.round(filled)[:, :70])


@pytest.mark.parametrize("text", EVERY)
def test_the_reduction_axis_may_be_any(text: str) -> None:
    form, value = parse_format(text), weights(24, 40).view(4, 6, 40)
    assert torch.equal(form.round(value.transpose(1, 2), axis=1), form.round(value).transpose(1, 2))
    assert torch.equal(form.round(value.movedim(-1, 0), axis=0), form.round(value).movedim(-1, 0))


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_rounded_once(text: str, dtype: torch.dtype) -> None:
    value = weights().to(dtype)
    rounded = parse_format(text).round(value)
    assert rounded.dtype == dtype
    wide = parse_format(text).round(value.double() if dtype is torch.float64 else value.float())
    assert torch.equal(rounded, wide.to(dtype))


@pytest.mark.parametrize("text", EVERY)
def test_nothing_and_zeros(text: str) -> None:
    form = parse_format(text)
    assert form.round(torch.zeros(0, 4)).shape == (0, 4)
    assert torch.equal(form.round(torch.zeros(3, 40)), torch.zeros(3, 40))
    assert form.round(torch.tensor(1.0)).shape == ()


def test_the_argument_is_left_alone() -> None:
    value = weights()
    before = value.clone()
    for text in EVERY:
        parse_format(text).round(value)
        parse_format(f"{text},stochastic" if ":" in text else f"{text}:stochastic").round(value, key=Key(0, "w"))
        quality(parse_format(text), value)
    assert torch.equal(value, before)


@pytest.mark.parametrize("text", EVERY)
def test_a_single_number(text: str) -> None:
    form, one = parse_format(text), torch.tensor(0.3)
    assert quality(form, one) == quality(form, one.view(1))
    assert form.bits(()) == form.bits((1,))


@pytest.mark.parametrize("text", [*EVERY, "int8:asymmetric", "int4:asymmetric", "int8:tensor,asymmetric"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_numbers_are_rounded_or_cut(text: str, dtype: torch.dtype) -> None:
    """Beyond what its scales reach, the end of the grid; infinite only in 16 bit."""
    form, far = parse_format(text), torch.tensor([3e38, -3e38, 1e37, 0.0], dtype=dtype)
    assert torch.allclose(form.round(far), far, rtol=0.1, atol=3e37) or form.name == "fp16"
    further = far * 1e100 if dtype is torch.float64 else far
    rounded = form.round(further)
    assert not rounded.isnan().any()
    assert rounded.isfinite().all() or form.rule == "none"
    assert rounded[:2].sign().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinity_does_not_become_a_number(text: str, dtype: torch.dtype) -> None:
    assert not parse_format(text).round(torch.tensor([inf, 1.0], dtype=dtype))[0].isfinite()


# --- stochastic rounding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["bf16", "fp8_e4m3", "int8", "int4:group=32", "int4:group=32,asymmetric", "nvfp4"])
def test_stochastic_rounding_is_unbiased(text: str) -> None:
    """Over 400 draws the mean error of each element is within five of its standard errors of zero.

    The variance of one draw is what the value is from its one neighbour, times what it is from the other.

    But for what is cut: the largest element of a block of symmetric integers, whose grid ends half a step below it.
    """
    form = parse_format(f"{text}{',' if ':' in text else ':'}stochastic")
    value = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    draws = torch.stack([form.round(value, key=Key(seed, "w")) for seed in range(400)]).double()
    below, above = value.double() - draws.amin(0), draws.amax(0) - value.double()
    error, spread = draws.mean(0) - value.double(), (below * above).clamp(min=0).sqrt() / 20
    cut = (draws.std(0) == 0) | (value.abs() >= 0.9 * value.abs().amax())
    if form.grid.mantissa_bits is None or form.name == "nvfp4":
        cut |= value.abs() >= 0.9 * value.abs().view(16, -1, 16).amax(-1).repeat_interleave(16, 1)
    assert cut.double().mean() < 0.3
    assert bool((error.abs() <= 5 * spread + 1e-7)[~cut].all())


@pytest.mark.parametrize("text", ["bf16", "fp16", "mxfp8", "mxfp6", "mxfp4"])
def test_what_a_format_holds_it_rounds_to_itself_at_random_too(text: str) -> None:
    """Where scales are powers of two: what is held is then exactly a multiple of them."""
    form, held = parse_format(f"{text}:stochastic"), parse_format(text).round(weights())
    for seed in range(20):
        assert torch.equal(form.round(held, key=Key(seed, "w")), held)


def test_stochastic_rounding_is_keyed() -> None:
    form, value = parse_format("mxfp4:stochastic"), weights()
    once, again, other = (form.round(value, key=Key(seed, "w")) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    with pytest.raises(InputError, match="needs a key"):
        form.round(value)


# --- bits, quality and names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "bits"),
    [
        ("bf16", (8, 128), 16.0),
        ("mxfp4", (8, 128), 4.25),
        ("nvfp4", (8, 128), 4.5),
        ("mxfp6", (8, 128), 6.25),
        ("mxfp8", (8, 128), 8.25),
        ("int4", (8, 256), 4.125),
        ("int4:group=32", (8, 128), 4.5),
        ("int4:group=32,asymmetric", (8, 128), 4.625),
        ("int8", (8, 128), 8.25),
        ("int8:tensor", (8, 128), 8.0),
        ("int4:group=100", (8, 128), 4 + 2 * 16 / 128),
    ],
)
def test_bits_count_the_scales(text: str, shape: tuple[int, int], bits: float) -> None:
    assert parse_format(text).bits(shape) == bits
    assert parse_format(text).bits(shape[::-1], axis=0) == bits


def test_quality_is_what_it_says() -> None:
    value, form = weights(), parse_format("mxfp4")
    rounded, found = form.round(value), quality(form, value)
    signal, noise = value.double().square().mean(), (rounded - value).double().square().mean()
    assert found.sqnr_db == pytest.approx(10 * log10(signal / noise), rel=1e-6)
    assert found.zeroed == ((rounded == 0) & (value != 0)).sum() / (value != 0).sum()
    blocks = value.view(64, 4, 32)
    power = 2.0 ** blocks.abs().amax(-1, keepdim=True).log2().floor()
    in_units = blocks.abs() / (power / 4)
    assert found.clipped == pytest.approx(((in_units > 7) & (power > 0)).double().mean().item())
    assert quality(parse_format("fp16"), torch.tensor([1e5, 1.0, 0.0, 1e-9])) == Quality(-inf, 0.25, 1 / 3)


@pytest.mark.parametrize("text", [*EVERY, "int8:tensor,stochastic", "mxfp6:e3m2,stochastic"])
def test_a_name_can_be_read_again(text: str) -> None:
    assert str(parse_format(text)) == text
    assert parse_format(str(parse_format(text))) == parse_format(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mxfp5", 'unknown format "mxfp5", did you mean "mxfp'),
        ("int4:group=0", 'int4: got group "0", expected a number of elements'),
        ("int4:group=x", 'int4: got group "x"'),
        ("int4:grup=32", 'int4: unknown option "grup=32"'),
        ("mxfp4:group=16", 'mxfp4: unknown option "group=16"'),
        ("fp8_e4m3:asymmetric", 'fp8_e4m3: unknown option "asymmetric"'),
        (8, "format: got 8, expected a name such as bf16"),
    ],
)
def test_what_is_no_format(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_format(text)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)


def test_integers_are_not_rounded() -> None:
    with pytest.raises(InputError, match="mxfp4: cannot round int64, expected floats"):
        parse_format("mxfp4").round(torch.arange(4))
