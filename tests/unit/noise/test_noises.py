"""Each noise model against its formula, element by element or in distribution."""

import math
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noisescope.errors import InputError
from noisescope.keys import Key
from noisescope.noise import (
    NOISES,
    AbsoluteGaussian,
    BitFlip,
    RelativeBias,
    RelativeGaussian,
    StuckAt,
    SystematicBias,
    Uniform,
    make_noise,
    register,
)
from noisescope.noise.drawing import PART, Draw
from noisescope.noise.formats import FORMATS, format_noise
from noisescope.testing import check_noise

KEY = Key(0, "model.layers.0.mlp.down_proj.linear.0.forward")
MANY = 2**20


def values(n: int = MANY, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(3)).to(dtype)


def error(noise, t: torch.Tensor, key: Key = KEY) -> torch.Tensor:
    out = t.clone()
    noise.disturb_(out, noise.scale, key)
    return out.double() - t.double()


CONFORMING = [
    RelativeGaussian(0.05),
    AbsoluteGaussian(0.05),
    Uniform(0.05),
    SystematicBias(0.05),
    RelativeBias(0.05),
    BitFlip(0.01),
    BitFlip(0.01, field="sign"),
    StuckAt(0.01),
    StuckAt(0.5, unit="element", value=3.0),
    *map(format_noise, FORMATS),
    format_noise("mxfp4", 0.5),
    format_noise("int4:group=32,asymmetric"),
    format_noise("nvfp4:stochastic"),
]


@pytest.mark.parametrize("noise", CONFORMING, ids=repr)
def test_conforms(noise) -> None:
    check_noise(noise)


def test_every_registered_noise_is_checked() -> None:
    assert {noise.name for noise in CONFORMING} == set(NOISES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("noise", [RelativeGaussian(0.1), AbsoluteGaussian(0.1), Uniform(0.1)], ids=repr)
def test_dense_noise_conforms_in_other_dtypes(noise, dtype) -> None:
    check_noise(noise, dtype=dtype)


def test_a_noise_that_breaks_a_rule_does_not_conform() -> None:
    class Unkeyed(RelativeGaussian):
        name = "unkeyed_for_test"

        def disturb_(self, value, scale, key):
            value.add_(torch.randn_like(value), alpha=scale)

    with pytest.raises(AssertionError, match="not registered"):
        check_noise(Unkeyed(0.05))
    NOISES["unkeyed_for_test"] = Unkeyed
    try:
        with pytest.raises(AssertionError, match="global generator"):
            check_noise(Unkeyed(0.05))
    finally:
        del NOISES["unkeyed_for_test"]


@pytest.mark.parametrize(
    ("noise", "ratio_std", "bound"),
    [(RelativeGaussian(0.03), 0.03, math.inf), (Uniform(0.03), 0.03 / math.sqrt(3), 0.03)],
    ids=["gaussian", "uniform"],
)
def test_relative_noise_is_proportional_to_the_value(noise, ratio_std, bound) -> None:
    t = values().double()
    ratio = error(noise, t) / t
    assert abs(ratio.mean()) < 5 * ratio_std / math.sqrt(MANY)
    assert ratio.std().item() == pytest.approx(ratio_std, rel=0.01)
    assert ratio.abs().max() <= bound * (1 + 1e-9)
    small, large = t.abs() < 0.1, t.abs() > 2
    assert ratio[small].std().item() == pytest.approx(ratio[large].std().item(), rel=0.05)


def test_gaussian_has_gaussian_tails() -> None:
    z = error(AbsoluteGaussian(1.0), torch.zeros(MANY, dtype=torch.float64))
    for sigmas in (1, 2, 3):
        expected = math.erfc(sigmas / math.sqrt(2))
        assert (z.abs() > sigmas).double().mean().item() == pytest.approx(expected, rel=0.05)


def test_absolute_noise_ignores_the_value() -> None:
    t = values().double() * 100
    e = error(AbsoluteGaussian(0.5), t)
    assert e.std().item() == pytest.approx(0.5, rel=0.01)
    assert abs(np.corrcoef(t.abs(), e.abs())[0, 1]) < 0.01


def test_biases_are_their_formula() -> None:
    t = torch.tensor([-2.0, -0.0, 0.0, 0.5, 3.0], dtype=torch.float64)
    assert torch.equal(error(SystematicBias(0.25), t), 0.25 * t.sign())
    assert torch.equal(error(RelativeBias(0.25), t), 0.25 * t.abs())


def test_draws_are_common_across_scales() -> None:
    t = values(1000).double()
    small, large = error(RelativeGaussian(0.01), t), error(RelativeGaussian(0.04), t)
    assert torch.allclose(4 * small, large, rtol=1e-9)
    flips = [error(BitFlip(p, field="sign"), values(1000)) != 0 for p in (0.05, 0.2)]
    assert bool((flips[1] | ~flips[0]).all()), "a larger probability strikes the same elements and more"


def test_large_values_are_drawn_in_pieces_without_a_seam() -> None:
    z = error(AbsoluteGaussian(1.0), torch.zeros(3 * PART + 5, dtype=torch.float64))
    a, b = z[:PART], z[PART : 2 * PART]
    assert not torch.equal(a, b)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(PART)
    assert z[3 * PART :].abs().min() > 0


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("noise", [RelativeGaussian(0.1), Uniform(0.1), BitFlip(0.1, "mantissa")], ids=repr)
def test_the_number_of_threads_does_not_matter(noise, threads) -> None:
    t = values(3 * PART + 5)
    found = []
    for number in (1, 2, 5):
        threads(number)
        found.append(error(noise, t))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_parts_are_disturbed_in_inference_mode_too(threads) -> None:
    threads(2)
    with torch.inference_mode():
        t = torch.ones(3 * PART)
        AbsoluteGaussian(1.0).disturb_(t, 1.0, KEY)
    assert (t != 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rarest_bits_give_finite_numbers(dtype, monkeypatch) -> None:
    draw = Draw(KEY, torch.device("cpu"))
    extremes = np.array([0, -1, 1, 2**63 - 1, -(2**63), 2**31 - 1, -(2**31)], dtype=np.int64).view(np.uint64)
    monkeypatch.setattr(draw, "_bits", SimpleNamespace(random_raw=lambda count: np.resize(extremes, count)))
    like = torch.empty(14, dtype=dtype)
    assert draw.uniform(like).abs().max() < 1
    assert 5 < draw.normal(like).abs().max() < 9


def test_normals_have_the_distribution_and_moments_of_the_normal() -> None:
    z = Draw(KEY, torch.device("cpu")).normal(torch.empty(MANY)).double().sort().values
    assert abs(z.mean()) < 5 / math.sqrt(MANY)
    assert abs(z.square().mean() - 1) < 5 * math.sqrt(2 / MANY)
    assert abs(z.pow(4).mean() - 3) < 5 * math.sqrt(96 / MANY)
    distance = (torch.special.ndtr(z) - (torch.arange(MANY) + 0.5) / MANY).abs().max()
    assert distance < 1.95 / math.sqrt(MANY), "Kolmogorov and Smirnov's test, at 0.1%"


def test_draws_of_one_key_go_on_and_other_keys_are_independent() -> None:
    like = torch.empty(PART)
    draw, other = (Draw(key, like.device) for key in (KEY, KEY.part("other")))
    first, second, third = draw.normal(like), draw.normal(like), other.normal(like)
    for one, two in ((first, second), (first, third), (first[1:], first[:-1])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(PART)


def test_a_view_is_disturbed_where_it_lies() -> None:
    whole = torch.ones(8, 6)
    RelativeGaussian(0.1).disturb_(whole[:, ::2], 0.1, KEY)
    assert torch.equal(whole[:, 1::2], torch.ones(8, 3))
    assert bool((whole[:, ::2] != 1).all())


FLOATS = {
    torch.float32: (np.float32, np.uint32, 23, 8),
    torch.float16: (np.float16, np.uint16, 10, 5),
    torch.bfloat16: (ml_dtypes.bfloat16, np.uint16, 7, 8),
    torch.float8_e4m3fn: (ml_dtypes.float8_e4m3fn, np.uint8, 3, 4),
    torch.float8_e5m2: (ml_dtypes.float8_e5m2, np.uint8, 2, 5),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("field", ["sign", "exponent", "mantissa", "any", 0, 5])
def test_bit_flips_hit_exactly_one_bit_of_the_field(dtype, field) -> None:
    _, _, mantissa, exponent = FLOATS[dtype]
    top = mantissa + exponent
    allowed = {
        "sign": {top},
        "exponent": set(range(mantissa, top)),
        "mantissa": set(range(mantissa)),
        "any": set(range(top + 1)),
    }.get(field, {field})
    before = values(20_000).to(dtype)
    after = before.clone()
    BitFlip(0.25, field=field).disturb_(after, 0.25, KEY)
    changed = bits(before) ^ bits(after)
    struck = changed[changed != 0]
    assert 0.24 < len(struck) / len(changed) < 0.26
    assert {int(x).bit_length() - 1 for x in struck} == allowed
    assert all(int(x).bit_count() == 1 for x in struck)


def bits(t: torch.Tensor) -> np.ndarray:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()]
    return t.view(width).numpy().astype(np.int64) & (2 ** (8 * t.element_size()) - 1)


def test_sign_flips_negate_as_another_library_reads_them() -> None:
    before = values(4096).to(torch.bfloat16)
    after = before.clone()
    BitFlip(1.0, field="sign").disturb_(after, 1.0, KEY)
    read = [t.view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(np.float32) for t in (before, after)]
    assert np.array_equal(read[0], -read[1])


def test_int8_has_a_sign_and_a_mantissa() -> None:
    t = torch.arange(-128, 128, dtype=torch.int8)
    out = t.clone()
    BitFlip(1.0, field="sign").disturb_(out, 1.0, KEY)
    assert torch.equal(out.int() & 0x7F, t.int() & 0x7F)
    assert bool(((out ^ t).int() & 0xFF == 0x80).all())
    with pytest.raises(InputError, match="int8 has no bit 'exponent'"):
        BitFlip(1.0, field="exponent").disturb_(out, 1.0, KEY)


def test_stuck_cells_are_the_same_at_every_step() -> None:
    noise = StuckAt(0.1, value=7.0, unit="channel")
    out = []
    for step in range(3):
        t = values(12 * 40).view(12, 40) + step
        noise.disturb_(t, noise.scale, Key(0, "s", 0, step))
        out.append((t == 7.0).all(0).nonzero().flatten().tolist())
    assert out[0] == out[1] == out[2]
    assert len(out[0]) == 4
    other = values(480).view(12, 40)
    noise.disturb_(other, noise.scale, Key(0, "another site"))
    assert (other == 7.0).all(0).nonzero().flatten().tolist() != out[0]


def test_a_larger_share_sticks_the_same_cells_and_more() -> None:
    small, large = torch.ones(1000), torch.ones(1000)
    StuckAt(0.05).disturb_(small, 0.05, KEY)
    StuckAt(0.2).disturb_(large, 0.2, KEY)
    assert (small == 0).sum() == 50
    assert (large == 0).sum() == 200
    assert bool(((large == 0) | (small != 0)).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RelativeGaussian(-0.1), "got -0.1, expected a finite number >= 0"),
        (lambda: RelativeGaussian(math.nan), "got nan"),
        (lambda: Uniform(math.inf), "got inf"),
        (lambda: RelativeGaussian("big"), "expected a number >= 0"),
        (lambda: BitFlip(1.5), "expected a probability"),
        (lambda: BitFlip(0.1, field="sing"), 'unknown bit field "sing", did you mean "sign"'),
        (lambda: BitFlip(0.1, field=99), "expected an index from 0 to 31"),
        (lambda: StuckAt(2.0), "expected a share"),
        (lambda: StuckAt(0.1, unit="row"), "unknown unit"),
        (lambda: StuckAt(0.1, value=math.nan), "expected a finite number"),
        (lambda: make_noise("gaussian", 0.1), 'unknown error type "gaussian"'),
        (lambda: make_noise("uniform", 0.1, field="sign"), "uniform: "),
        (lambda: BitFlip(0.1).bits(torch.float64), "cannot flip bits of float64"),
        (lambda: BitFlip(0.1, field=20).bits(torch.float16), "float16 has no bit 20"),
    ],
)
def test_bad_input_is_one_line(make, message) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match='noise "uniform" is registered already'):
        register(Uniform)


@given(st.integers(0, 2**40), st.text(max_size=20), st.integers(0, 5), st.integers(-1, 5))
def test_keys_that_differ_draw_differently(seed: int, site: str, trial: int, step: int) -> None:
    key = Key(seed, site, trial, step)
    assert key.digest == Key(seed, site, trial, step).digest
    others = [Key(seed + 1, site, trial, step), Key(seed, site + "x", trial, step), Key(seed, site, trial + 1, step)]
    others += [Key(seed, site, trial, step + 1), key.part("0"), key.part("1")]
    assert len({key.digest, *(other.digest for other in others)}) == 7
