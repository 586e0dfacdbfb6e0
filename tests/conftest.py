"""Shared by all tests: where the helpers are, quiet libraries, and fixtures that save time where a test wants them."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))
logging.set_verbosity_error()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny tensors do not gain from threads, and a shared machine does lose."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """A Trainer collects garbage whenever it starts; looking through all that was imported takes longer than it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
