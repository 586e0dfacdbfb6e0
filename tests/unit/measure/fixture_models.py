"""The trained fixture models and their tokenizers, opened once."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = ("llama", "gpt2")
TEMPLATE = (
    "{% for m in messages %}{{ '<bos>' + m['role'] + '\n' + m['content'] + '<eos>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>assistant\n' }}{% endif %}"
)


@lru_cache
def model(name: str = "llama") -> Any:
    return AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval()


@lru_cache
def tokenizer(name: str = "llama") -> Any:
    return AutoTokenizer.from_pretrained(FIXTURES / name)


def chat_tokenizer(template: str = TEMPLATE) -> Any:
    """One with a chat template."""
    fresh = AutoTokenizer.from_pretrained(FIXTURES / "llama")
    fresh.chat_template = template
    return fresh


def bos_tokenizer() -> Any:
    """One that begins every text with a token."""
    fresh = AutoTokenizer.from_pretrained(FIXTURES / "llama")
    fresh.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return fresh
