"""Sketches: linear, the same everywhere, and as precise as they say whatever the error looks like."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from noisescope.traces.sampling import SLOTS, Sample, positions
from noisescope.traces.sketch import BUCKETS, CHUNK, STANDARD_ERROR, Sketcher, keyed
from noisescope.traces.slabs import Slabs

CPU = torch.device("cpu")


def sketch(value: torch.Tensor, *, seed: int = 0, call: int = 0) -> torch.Tensor:
    into = torch.zeros(BUCKETS, dtype=torch.float64)
    for number, chunk in enumerate(value.reshape(-1).split(CHUNK)):
        into += Sketcher(seed, CPU).sketch(chunk, call, number)
    return into


def slowly(value: torch.Tensor, *, seed: int = 0, call: int = 0) -> torch.Tensor:
    """The definition, element by element."""
    bits = np.unpackbits(keyed(seed, "signs").bit_generator.random_raw(CHUNK // 32 + 1).view(np.uint8))
    into = torch.zeros(BUCKETS, dtype=torch.float64)
    for at, element in enumerate(value.reshape(-1).double().tolist()):
        number, inside = divmod(at, CHUNK)
        start = int(keyed(seed, "entry", call, number).integers(CHUNK))
        into[inside % BUCKETS] += element if bits[start + inside] else -element
    return into


def errors() -> dict[str, torch.Tensor]:
    """Errors of many kinds, 256 tokens x 96 channels."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(256, 96, generator=draw)
    channel, token, spikes = torch.zeros(256, 96), torch.zeros(256, 96), torch.zeros(256, 96)
    channel[:, 17] = x[:, 17]
    token[3] = 5.0
    spikes.view(-1)[torch.randperm(256 * 96, generator=draw)[:5]] = 100.0
    rows = torch.arange(256.0).unsqueeze(1).expand(256, 96)
    return {
        "noise": x,
        "constant": torch.ones(256, 96),
        "gain": (x + 3) * 0.01,
        "channel": channel,
        "token": token,
        "spikes": spikes,
        "growing": rows.contiguous(),
        "one element": torch.eye(256, 96)[:1].contiguous(),
    }


def test_a_sketch_is_its_definition() -> None:
    value = torch.randn(3, 1500, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sketch(value, seed=5, call=2), slowly(value, seed=5, call=2), atol=1e-5)


def test_a_sketch_of_several_chunks_is_its_definition() -> None:
    value = torch.zeros(CHUNK + 4000)
    value[:3000] = 1.0
    value[-3000:] = 2.0
    expected = slowly(value[:3000]) + 0
    bits = np.unpackbits(keyed(0, "signs").bit_generator.random_raw(CHUNK // 32 + 1).view(np.uint8))
    start = int(keyed(0, "entry", 0, 1).integers(CHUNK))
    for inside in range(1000, 4000):
        expected[inside % BUCKETS] += 2.0 if bits[start + inside] else -2.0
    assert torch.allclose(sketch(value), expected)


def test_it_is_linear() -> None:
    a, b = (torch.randn(64, 100, generator=torch.Generator().manual_seed(seed)).double().float() for seed in (1, 2))
    assert torch.allclose(sketch(a) - sketch(b), sketch(a - b), atol=1e-4)


@pytest.mark.parametrize("kind", errors())
def test_the_norm_of_an_error_is_estimated_without_bias_and_as_precisely_as_stated(kind: str) -> None:
    error = errors()[kind]
    true = float(error.double().square().sum())
    found = torch.tensor([float(sketch(error, seed=seed).square().sum()) / true for seed in range(200)])
    spread = float((found - 1).square().mean().sqrt())
    assert abs(float(found.mean()) - 1) < 3.5 * STANDARD_ERROR / 200**0.5
    assert spread < 1.15 * STANDARD_ERROR
    covered = float(((found - 1).abs() <= 1.96 * STANDARD_ERROR).double().mean())
    assert covered >= 0.91


def test_signs_and_samples_are_the_same_in_another_process() -> None:
    """Golden: a trace of today is compared with one of next year."""
    code = (
        "from noisescope.traces.sketch import _signs, _entry; from noisescope.traces.sampling import positions;"
        "print(_signs(0)[:24].int().tolist(), _entry(0, 1, 2), positions(0, (5000, 300))[:4].tolist())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == GOLDEN


GOLDEN = (
    "[-1, 1, -1, -1, 1, -1, -1, 1, 1, 1, -1, 1, 1, -1, -1, -1, 1, 1, -1, 1, 1, -1, -1, -1] "
    "346544 [[0, 3790], [1, 133], [1, 1], [0, 157]]"
)


def test_a_sample_holds_the_elements_it_says_it_holds() -> None:
    calls = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (700, 40, 5000)]
    sample = Sample(3)
    for call in calls:
        sample.fold(call, Slabs(CPU))
    where = positions(3, (700, 40, 5000))
    assert sample.values is not None
    assert sample.values.tolist() == [float(calls[call][element]) for call, element in where.tolist()]


def test_every_element_is_as_likely_to_be_sampled() -> None:
    sizes = (300, 100, 600)
    counts = np.zeros(1000)
    starts = np.cumsum([0, *sizes[:-1]])
    for seed in range(100):
        where = positions(seed, sizes)
        np.add.at(counts, starts[where[:, 0]] + where[:, 1], 1)
    expected = 100 * SLOTS / 1000
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert 999 - 5 * (2 * 999) ** 0.5 < chi < 999 + 5 * (2 * 999) ** 0.5
    assert abs(counts[:300].sum() / (100 * SLOTS) - 0.3) < 0.01


def test_which_elements_are_sampled_depends_on_sizes_and_seed_alone() -> None:
    assert np.array_equal(positions(0, (10, 20)), positions(0, (10, 20)))
    assert not np.array_equal(positions(0, (10, 20)), positions(1, (10, 20)))
