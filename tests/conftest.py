"""Shared by all tests: where the helpers are, quiet libraries, and fixtures that save time where a test wants them."""

import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))
logging.set_verbosity_error()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background, which programs inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _the_built_in_text_is_encoded_once() -> Iterator[None]:
    """By each tokenizer: half a million characters take longer than many a diagnosis of a fixture."""
    from noisescope.measure.texts import Encoder, built_in_text

    real, known = Encoder.encode_long, {}

    def encode_long(self: Encoder, text: str) -> list[int]:
        tokenizer: Any = self.tokenizer
        rules = getattr(tokenizer, "backend_tokenizer", None)
        if rules is None or "encode" in vars(tokenizer) or text != built_in_text():
            return real(self, text)
        key = type(tokenizer).encode, rules.to_str(), text
        if key not in known:
            known[key] = tuple(real(self, text))
        return [*known[key]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "encode_long", encode_long)
        yield


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
