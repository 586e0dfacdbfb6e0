"""Channel statistics against float64 and against torch.quantile, whatever the dtype, the chunks and the calls."""

import pytest
import torch

from noisescope.capturing import histogram, scratch
from noisescope.capturing.channels import ChannelTally, tally_bytes
from noisescope.capturing.histogram import BINS
from noisescope.capturing.scratch import Scratch

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def tally(*values):
    """The statistics of values that arrive one after the other."""
    buffers, found = Scratch(), ChannelTally(values[0].shape[-1], values[0].device)
    for value in values:
        found.fold(value, buffers)
    return found.read()


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_equal_those_of_float64(dtype):
    value = (3 * normal(500, 7) + 1).to(dtype)
    found, exact = tally(*value.split(123)), value.double()
    assert found.count.tolist() == [500] * 7
    assert found.max_abs.equal(exact.abs().amax(0))
    torch.testing.assert_close(found.mean, exact.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.mean_abs, exact.abs().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.std, exact.std(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("mean", "std"), [(1e4, 1e-1), (-300.0, 1e-3), (0.0, 1.0), (1e-4, 1e-9)])
def test_a_small_spread_around_a_large_mean_survives(mean, std):
    value = std * normal(4000, 5) + mean
    found = tally(*value.split(900))
    torch.testing.assert_close(found.std, value.double().std(0, correction=0), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.mean, value.double().mean(0), rtol=1e-7, atol=1e-7 * std)


def test_a_mean_that_drifts_from_call_to_call_keeps_its_spread():
    value = normal(1000, 3) * 1e-2 + torch.arange(10.0).repeat_interleave(100).unsqueeze(1) * 1e3
    found = tally(*value.split(100))
    torch.testing.assert_close(found.std, value.double().std(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.exp(),
        lambda x: x.pow(3) * 100,
        lambda x: torch.sigmoid(x) * 1e-3,
        lambda x: torch.where(x > 2, 50 * x, x),
    ],
    ids=["normal", "lognormal", "heavy", "small", "outliers"],
)
def test_quantiles_are_within_two_percent_of_torch(make, dtype):
    value = make(normal(20_000, 6)).to(dtype)
    found, size = tally(*value.split(250)), value.abs().double()
    torch.testing.assert_close(found.q50_abs, size.quantile(0.5, dim=0), rtol=0.02, atol=0)
    torch.testing.assert_close(found.q99_abs, size.quantile(0.99, dim=0), rtol=0.02, atol=0)


def test_quantiles_of_long_values_come_from_some_of_their_rows():
    value = normal(30_000, 6)
    found, size = tally(*value.split(6_000)), value.abs().double()
    torch.testing.assert_close(found.q50_abs, size.quantile(0.5, dim=0), rtol=0.05, atol=0)
    torch.testing.assert_close(found.q99_abs, size.quantile(0.99, dim=0), rtol=0.05, atol=0)


@pytest.mark.parametrize("length", [3, 12, 50, 64, 150, 180, 256, 1020])
def test_the_rows_looked_at_do_not_keep_step_with_the_text(length):
    """One token in `length` is huge: less than 1% of them, so q99 must not see it, or more, so it must."""
    value = torch.ones(4096 // length * length, 1)
    value[::length] = 1000.0
    found = tally(value)
    assert (found.q99_abs > 10).item() == (length < 100)
    assert found.q50_abs < 2


def test_quantiles_stay_within_one_bin_where_values_crowd_at_its_edge():
    edges = torch.tensor([[1.0, 1.1249, 1.125, 3.99, 4.0, 1e-3]])
    value = torch.cat([edges.expand(999, -1), torch.full((1, 6), 1e4)])
    found = tally(value)
    torch.testing.assert_close(found.q50_abs, edges[0].double(), rtol=0.125, atol=0)
    torch.testing.assert_close(found.q99_abs, edges[0].double(), rtol=0.125, atol=0)


def test_quantiles_outside_the_octaves_are_bounded():
    found = tally(torch.tensor([[0.0, 1e-9, 3e5, 1e30]]).expand(100, -1))
    assert found.q50_abs[0] == 0
    assert 0 <= found.q50_abs[1] <= 2.0**-22
    assert 2.0**18 <= found.q50_abs[2] <= found.q99_abs[2] <= found.max_abs[2]
    assert found.q99_abs[3] <= found.max_abs[3]


def test_non_finite_values_are_counted_and_left_out():
    value = normal(100, 4)
    dirty = value.clone()
    dirty[3, 0], dirty[50, 1], dirty[51, 1], dirty[:, 3] = torch.nan, torch.inf, -torch.inf, torch.nan
    found = tally(*dirty.split(40))
    assert found.non_finite == 103
    assert found.count.tolist() == [99, 98, 100, 0]
    for channel in range(3):  # values of at most 256 rows: the same ones are in the histogram
        kept = dirty[:, channel][dirty[:, channel].isfinite()].unsqueeze(1)
        clean = tally(kept)
        for name in ("max_abs", "mean", "std", "mean_abs", "q50_abs", "q99_abs"):
            torch.testing.assert_close(getattr(found, name)[channel], getattr(clean, name)[0], rtol=1e-6, atol=1e-7)
    assert all(getattr(found, name)[3].isnan() for name in ("max_abs", "mean", "std", "mean_abs", "q50_abs", "q99_abs"))


def test_the_first_rows_may_all_be_bad():
    found = tally(torch.full((30, 2), torch.nan), normal(50, 2) + 5)
    torch.testing.assert_close(found.mean, (normal(50, 2) + 5).double().mean(0))
    assert found.non_finite == 60


def test_finite_values_whose_sum_overflows_are_not_called_bad():
    found = tally(torch.full((5, 3), 3e38))
    assert found.non_finite == 0
    assert found.count.tolist() == [5, 5, 5]
    torch.testing.assert_close(found.max_abs, torch.full((3,), 3e38).double())


def test_the_size_of_chunks_does_not_matter(monkeypatch):
    value = normal(300, 10)
    whole = tally(value)
    monkeypatch.setattr(scratch, "CHUNK", 70)
    parts = tally(value)
    torch.testing.assert_close(parts.std, whole.std, rtol=1e-6, atol=0)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-6, atol=1e-7)
    assert parts.q99_abs.equal(whole.q99_abs)
    assert parts.max_abs.equal(whole.max_abs)


def test_rows_wider_than_a_chunk(monkeypatch):
    monkeypatch.setattr(scratch, "CHUNK", 8)
    torch.testing.assert_close(tally(normal(9, 20)).std, normal(9, 20).double().std(0, correction=0))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 5, 3, 4)])
def test_channels_are_the_last_dimension(shape):
    value = normal(*shape)
    assert tally(value).max_abs.equal(value.reshape(-1, 4).abs().amax(0).double())


def test_views_and_integers_are_values_too():
    value = normal(6, 8)
    assert tally(value.t()).mean_abs.shape == (6,)
    assert tally(torch.tensor([[-3, 4]])).max_abs.tolist() == [3, 4]


def test_a_value_is_not_changed_and_an_empty_one_adds_nothing():
    value = normal(40, 4)
    before = value.clone()
    found = tally(value, torch.empty(0, 4))
    assert value.equal(before)
    assert found.tokens == 40


def test_a_site_that_gets_wider_counts_each_channel_where_it_exists():
    found, buffers = ChannelTally(2, torch.device("cpu")), Scratch()
    values = [normal(5, 2), normal(6, 3, seed=1), normal(7, 2, seed=2)]
    found.fold(values[0], buffers)
    found.widen(3)
    for value in values[1:]:
        found.fold(value, buffers)
    read = found.read()
    assert read.count.tolist() == [18, 18, 6]
    torch.testing.assert_close(read.std[2], values[1][:, 2].double().std(correction=0))
    torch.testing.assert_close(read.mean[0], torch.cat([value[:, 0] for value in values]).double().mean())


def test_reading_many_channels_at_once_and_in_parts_is_the_same(monkeypatch):
    whole = tally(normal(50, 9))
    monkeypatch.setattr(histogram, "_AT_ONCE", 4)
    assert tally(normal(50, 9)).q99_abs.equal(whole.q99_abs)


def test_the_bytes_said_are_the_bytes_held():
    found = ChannelTally(11, torch.device("cpu"))
    assert found._sums.nbytes + found._histogram.counts.nbytes == tally_bytes(11) == 11 * (4 * BINS + 48)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_values_among_the_first_do_not_cost_precision(bad):
    value = normal(1000, 4) + 1e4
    value[3, 0] = bad
    found, kept = tally(value), value.double()[torch.arange(1000) != 3]
    torch.testing.assert_close(found.std[0], kept.std(0, correction=0)[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(found.std[1:], value.double().std(0, correction=0)[1:], rtol=1e-4, atol=0)


@pytest.mark.parametrize(("size", "dtype"), [(1e20, torch.bfloat16), (1e37, torch.float32), (1e-25, torch.float32)])
def test_values_whose_squares_leave_float32(size, dtype):
    value = (size * normal(500, 3)).to(dtype)
    found, exact = tally(*value.split(200)), value.double()
    assert found.count.tolist() == [500] * 3
    torch.testing.assert_close(found.mean, exact.mean(0), rtol=1e-6, atol=1e-6 * size)
    torch.testing.assert_close(found.std, exact.std(0, correction=0), rtol=1e-6, atol=0)
    assert found.max_abs.equal(exact.abs().amax(0))
