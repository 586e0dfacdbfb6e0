"""The digest of a value's bits: what changes it, and that numpy finds the same one."""

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import pytest
import torch

from noisescope.traces.bits import bits_of
from noisescope.traces.sketch import CHUNK, Sketcher
from noisescope.traces.tally import SiteTally

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def recomputed(*calls: torch.Tensor) -> str:
    """As the page of the format says, for calls of any size."""
    found = blake2b(digest_size=8)
    for call in calls:
        data = call.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        size = CHUNK * call.element_size()
        for chunk in (data[start : start + size] for start in range(0, len(data), size)):
            words = np.frombuffer(chunk + bytes(-len(chunk) % 8), "<u8")
            laid = np.pad(words, (0, -len(words) % 127)).reshape(-1, 127)
            found.update(laid.sum(1, dtype="<u8").tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (10, 33), (4, 127, 2), (64, 128), (3, 7, 101)])
def test_numpy_finds_the_same(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    one, other = (draw(*shape, seed=seed).to(dtype) for seed in range(2))
    assert bits_of([one, other]) == recomputed(one, other)
    tally = SiteTally(0)
    for value in (one, other):
        tally.fold(value, Sketcher(0, torch.device("cpu")))
    assert tally.read().bits == recomputed(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_finds_the_same_of_several_chunks(dtype: torch.dtype) -> None:
    value = draw(CHUNK + 77).to(dtype)
    assert bits_of([value]) == recomputed(value)
    assert bits_of([value[1:]]) == recomputed(value[1:])  # does not begin at a whole word


def test_what_is_not_finite_has_its_bits_in_it() -> None:
    values = [draw(4, 8) for _ in range(3)]
    values[0][1, 1], values[1][1, 1] = torch.nan, torch.inf
    found = []
    for value in values:
        tally = SiteTally(0)
        tally.fold(value, Sketcher(0, torch.device("cpu")))
        found.append(tally.read().bits)
    assert found == [recomputed(value) for value in values]


def _swapped(one: int, other: int) -> Callable[[torch.Tensor], object]:
    def swap(value: torch.Tensor) -> None:
        words = value.view(torch.int64)
        words[[one, other]] = words[[other, one]]

    return swap


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "the sign of an even element": lambda value: value[6:7].neg_(),
    "the sign of an odd element": lambda value: value[7:8].neg_(),
    "the signs of two odd elements far apart": lambda value: value.__setitem__([1, 9001], -value[[1, 9001]]),
    "the signs of all odd elements": lambda value: value[1::2].neg_(),
    "the signs of all elements": lambda value: value.neg_(),
    "two elements of a word": lambda value: value.__setitem__([0, 1], value[[1, 0]]),
    "words far apart": _swapped(3, 4000),
    "a roll of rows": lambda value: value.copy_(value.view(-1, 64).roll(1, 0).view(-1)),
    "a permutation of channels": lambda value: value.copy_(value.view(-1, 64).flip(1).view(-1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_changes_with(change: str) -> None:
    value = draw(64 * 256)
    other = value.clone()
    CHANGES[change](other)
    assert not torch.equal(value, other)
    assert bits_of([value]) != bits_of([other])


def test_it_is_that_of_any_number_of_threads() -> None:
    value, threads = draw(CHUNK + 5), torch.get_num_threads()
    try:
        found = set()
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.add(bits_of([value]))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1
