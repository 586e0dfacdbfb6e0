"""A fixture model, its baseline, and the helpers beside the tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import noisescope as ns
from trained import fixture

sys.path.insert(0, str(Path(__file__).parent))

SMALL = {"n_samples": 24, "max_length": 16, "operators": "softmax,linear"}


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors do not gain from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def llama() -> tuple[torch.nn.Module, Any]:
    return fixture("llama")


@pytest.fixture(scope="package")
def baseline(llama: tuple[torch.nn.Module, Any]) -> ns.Baseline:
    """Of a few samples: enough to be compared with, not to pass anything."""
    model, tokenizer = llama
    return ns.take_baseline(model, tokenizer=tokenizer, name="good", **SMALL)
