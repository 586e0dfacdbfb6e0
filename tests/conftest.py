"""Shared by all tests: where the helpers are, quiet libraries, and one thread where a test wants no more."""

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
