"""The two trained fixture models, and text for them."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("llama", "gpt2")


def fixture(name: str) -> tuple[torch.nn.Module, Any]:
    """A trained model, freshly loaded, and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval(), tokenizer(name)


@cache
def tokenizer(name: str) -> Any:
    return AutoTokenizer.from_pretrained(FIXTURES / name)
