"""What a fault is called, on values that no simulator made; and `other` for what is none of these."""

import pytest
import torch
from torch import Tensor

from noisescope.locating.naming import KINDS, name_kind

DTYPES = (torch.float32, torch.bfloat16)


def values(dtype: torch.dtype, rows: int = 12, width: int = 40, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def name(value: Tensor, due: Tensor, *, repeats: bool = True) -> str:
    return name_kind(value, due.double(), 0.0, repeats=repeats)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_simple_faults_have_their_names(dtype: torch.dtype) -> None:
    due = values(dtype)
    wide = due.float()
    noise = torch.randn(due.shape, generator=torch.Generator().manual_seed(5))
    stuck = due.clone()
    stuck[:, [3, 17]] = 0.25
    spiked = due.clone()
    spiked.view(-1)[[7, 300]] = 40.0
    assert name(torch.where(wide.abs() < 0.4, 0.0, wide).to(dtype), due) == "zeroing"
    assert name(wide.clamp(-1.1, 1.1).to(dtype), due) == "clipping"
    assert name((wide + 0.3).to(dtype), due) == "offset"
    assert name((wide * 0.9).to(dtype), due) == "gain"
    assert name(stuck, due) == "stuck"
    assert name(spiked, due) == "spikes"
    assert name((wide + 0.1 * noise).to(dtype), due, repeats=False) == "noise"
    assert name(spiked, due, repeats=False) == "spikes"
    integer = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[dtype]
    mask = {torch.float32: ~0xFFF, torch.bfloat16: ~0x7}[dtype]
    assert name((due.contiguous().view(integer) & mask).view(dtype), due) == "precision loss"


def test_what_is_none_of_these_is_other() -> None:
    due = values(torch.float32)
    assert name(due.flip(0), due) == "other"
    assert name(due.square(), due) == "other"
    assert name(due, due) == "other"


def test_a_fault_of_some_channels_is_named_by_these_channels() -> None:
    due = values(torch.float32)
    some = due.clone()
    some[:, 5] *= 1.02
    assert name(some, due) == "gain"
    some = due.clone()
    some[:, 5] += 0.01
    assert name(some, due) == "offset"


def test_every_name_is_in_the_list() -> None:
    assert {"zeroing", "clipping", "offset", "gain", "spikes", "precision loss", "other"} <= set(KINDS)
