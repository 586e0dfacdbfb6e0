"""Healthy runs of a locator: which model, dtype, prompt, shape, attention, threads, and which make of device."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from families import CONFIGS, VOCAB, build
from foreign import FOREIGN, MODES, foreign_device, quantised
from noisescope.locating import Verdict, locate
from noisescope.models import load
from trained import NAMES, fixture, tokenizer

__all__ = ["SHAPES", "Setting", "inputs", "make", "run"]

logging.disable_progress_bar()

SHAPES = ((1, 1), (1, 17), (8, 3), (2, 32))
PROMPTS = ("text", "padded", "repeated", "random")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
TEXT = (
    "The old clock in the hall struck nine, and nobody in the house had gone to bed.",
    "Every morning she walked to the river and counted the boats that came in.",
    "def mean(values):\n    return sum(values) / len(values)",
    "Rain fell on the tin roof all night long.",
)


@dataclass(frozen=True)
class Setting:
    """One healthy run."""

    model: str = "trained llama"
    """a trained fixture, a family, `plain`, `dropout`, or `default`, which users get"""
    dtype: str = "float32"
    prompt: str = "random"
    shape: tuple[int, int] = (2, 6)
    attention: str | None = None
    """eager or sdpa; None for the model's own"""
    threads: int = 1
    arithmetic: tuple[str, ...] = ()
    """rows of `foreign`; none for this machine's own"""
    stress: str = ""
    """what was done to the weights"""
    seed: int = 0

    def __str__(self) -> str:
        rows, length = self.shape
        given = (self.model, self.dtype, f"{self.prompt} {rows}x{length}", self.attention, self.stress)
        more = (f"{self.threads} threads" if self.threads > 1 else "", *self.arithmetic)
        return ", ".join(part for part in (*given, *more) if part) + (f", seed {self.seed}" if self.seed else "")


# --- models -----------------------------------------------------------------------------------------------------


class _PlainBlock(nn.Module):
    """A block whose norm, gate and attention are written out in functions, none of them in a module of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        a, b = self.up(n).chunk(2, -1)
        gate = a / (1 + torch.exp(-a)) + torch.tanh(b) * torch.sigmoid(a) / torch.sqrt(1 + b * b)
        scores = torch.softmax(n @ n.transpose(-2, -1) / x.shape[-1] ** 0.5, -1)
        return x + self.down(scores @ gate)


class _Plain(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(_PlainBlock(width) for _ in range(2))
        self.head = nn.Linear(width, VOCAB)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor, **_: Any) -> tuple[Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return (self.head(x),)


def _embeddings(model: nn.Module) -> Tensor:
    return model.get_input_embeddings().weight.data


def _outliers(model: nn.Module) -> None:
    """Two channels of the hidden state are a thousand times larger than the others, as in trained models."""
    _embeddings(model)[:, :2] *= 1000.0


def _offset(model: nn.Module) -> None:
    """The mean of the hidden state is far larger than its deviation."""
    _embeddings(model).add_(30 * _embeddings(model).std())


def _sharp(model: nn.Module) -> None:
    """Attention that looks at one token: scores of hundreds."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and any(part in name for part in ("q_proj", "k_proj", "c_attn", "query_key_value")):
            parameter.data *= 12.0


def _small(model: nn.Module) -> None:
    """Some numbers are too small to be normal."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        where = torch.rand(parameter.shape, generator=generator) < 0.05
        parameter.data[where] *= 1e-38


def _large(model: nn.Module) -> None:
    """A hidden state of ten thousands."""
    _embeddings(model).mul_(2e4 / _embeddings(model).abs().max())


STRESSES: dict[str, Callable[[nn.Module], object]] = {
    "outliers": _outliers,
    "offset": _offset,
    "sharp": _sharp,
    "small": _small,
    "large": _large,
    "int8": lambda model: quantised(model, 8),
    "int4": lambda model: quantised(model, 4),
}


def make(setting: Setting) -> nn.Module:
    """The model of a setting, in eval mode."""
    kind, _, name = setting.model.partition(" ")
    if kind == "trained":
        assert name in NAMES
        model = fixture(name)[0]
        if setting.attention:
            model.set_attn_implementation(setting.attention)
    elif setting.model == "default":
        model = load(dtype="float32").model
        if setting.attention:
            model.set_attn_implementation(setting.attention)
    elif setting.model == "plain":
        torch.manual_seed(setting.seed)
        model = _Plain().eval()
    elif setting.model == "dropout":
        torch.manual_seed(setting.seed)
        model = _with_dropout(setting.attention)
    else:
        model = build(setting.model, attn=setting.attention, seed=setting.seed)
        _liven(model, setting.seed)
    if setting.stress:
        with torch.no_grad():
            STRESSES[setting.stress](model)
    return model.to(DTYPES[setting.dtype])


def _with_dropout(attention: str | None) -> nn.Module:
    from copy import deepcopy

    from transformers import GPT2LMHeadModel

    config = deepcopy(CONFIGS["gpt2"])
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.2
    config._attn_implementation = attention or "sdpa"
    return GPT2LMHeadModel(config).eval()


def _liven(model: nn.Module, seed: int) -> None:
    """Weights as large as trained ones, biases and gains that are not 0 and 1."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.add_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)


# --- prompts ----------------------------------------------------------------------------------------------------


def inputs(setting: Setting) -> dict[str, Tensor]:
    """What the model is given."""
    rows, length = setting.shape
    trained = setting.model.startswith("trained")
    vocabulary = 512 if trained else 49_152 if setting.model == "default" else VOCAB
    generator = torch.Generator().manual_seed(setting.seed)
    ids = torch.randint(3, vocabulary, (rows, length), generator=generator)
    if setting.prompt == "text":
        ids = torch.stack([_text(setting.model.split()[-1], row, length, vocabulary) for row in range(rows)])
    elif setting.prompt == "repeated":
        ids = torch.full((rows, length), int(ids[0, 0]))
    given = {"input_ids": ids}
    if setting.prompt == "padded":
        mask = torch.ones_like(ids)
        for row in range(rows):
            mask[row, : (row * 5 + 2) % length] = 0
        given |= {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}
    if setting.model == "t5":
        given["decoder_input_ids"] = ids
    return given


def _text(name: str, row: int, length: int, vocabulary: int) -> Tensor:
    """Tokens of text; for a model without a tokenizer the trained one's, folded into its vocabulary."""
    text = " ".join((TEXT[row % len(TEXT)],) * 4)
    reader = _default_tokenizer() if name == "default" else tokenizer(name if name in NAMES else "llama")
    found = reader(text)["input_ids"]
    found = (found * (length // len(found) + 1))[:length]
    return torch.tensor(found) % vocabulary


@cache
def _default_tokenizer() -> Any:
    return load().tokenizer


# --- running ----------------------------------------------------------------------------------------------------


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(setting: Setting, **options: Any) -> Verdict:
    """The verdict on a device that is healthy."""
    assert all(name in FOREIGN | MODES for name in setting.arithmetic), setting.arithmetic
    model = make(setting)
    with ExitStack() as stack:
        stack.enter_context(_threads(setting.threads))
        if setting.arithmetic:
            device = stack.enter_context(foreign_device(*setting.arithmetic, model=model))
        verdict = locate(model, inputs(setting), **options)
        if setting.arithmetic:
            assert device.calls, f"{setting}: nothing was computed otherwise"
    return verdict
