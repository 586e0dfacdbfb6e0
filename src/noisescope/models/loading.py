"""load(): one way in for every model, from nothing at all to a hub id.

>>> loaded = load()                              # doctest: +SKIP
>>> loaded.name, loaded.source                   # doctest: +SKIP
('SmolLM2-135M-Instruct', 'default')
"""

__all__ = ["DTYPES", "LoadedModel", "digest_of", "load"]

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .. import store
from ..errors import InputError, ModelError, unknown_name
from .boundary import one_line
from .checkpoint import Checkpoint, has_tokenizer, inspect_directory, inspect_gguf
from .default import DEFAULT, fetch_default
from .opening import attention_names, open_config, open_model, open_tokenizer
from .sources import TOKENIZER_FILES, Kind, Source, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in eval mode with its tokenizer (None where it has none) and where both came from.

    name is fit for a report: never a full path. unused_weights are in the files but have no place in the model.
    """

    model: "PreTrainedModel" = field(repr=False)
    tokenizer: "PreTrainedTokenizerBase | None" = field(repr=False)
    name: str
    source: Kind
    path: Path
    weights: tuple[Path, ...] = field(repr=False)
    unused_weights: tuple[str, ...] = field(repr=False)
    trust_remote_code: bool

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the weight file, before any cast; of several files, that of their digests in name order."""
        return digest_of(self.weights)


def digest_of(files: Sequence[Path]) -> str:
    """The SHA-256 of a file, or of several files' digests in their order."""
    digests = [store.sha256(file) for file in files]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def load(
    name: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    attn: str | None = None,
    tokenizer: str | Path | None = None,
    trust_remote_code: bool = False,
    say: Callable[[str], None] | None = None,
) -> LoadedModel:
    """The model of a hub id, a local directory or a GGUF file; with no name the default model.

    dtype "auto" is the checkpoint's own (float32 for the default model). device is a torch device, or "auto" to spread
    a big model over all of them. attn is an attention implementation (eager, sdpa, ...). tokenizer names another
    directory or hub id to take the tokenizer from. say gets a line before anything that takes long.

    Only safetensors and GGUF are opened, and code that comes with a model runs only with trust_remote_code=True. A
    checkpoint that lacks a weight is an error, not a model with random numbers in it.
    """
    _check_options(dtype, device, attn)
    source = _default(say) if name is None else resolve(name)
    checkpoint = _inspect(source, trust_remote_code=trust_remote_code)
    config = open_config(checkpoint, trust_remote_code=trust_remote_code)
    words = _tokenizer(checkpoint, tokenizer, trust_remote_code=trust_remote_code)
    model, unused = open_model(
        checkpoint, config, dtype=dtype, device=device, attn=attn, trust_remote_code=trust_remote_code
    )
    return LoadedModel(
        model, words, source.name, source.kind, source.path, checkpoint.weights, unused, trust_remote_code
    )


def _default(say: Callable[[str], None] | None) -> Source:
    return Source("default", DEFAULT.name, DEFAULT.name, fetch_default(say=say))


def _inspect(source: Source, *, trust_remote_code: bool) -> Checkpoint:
    if source.kind == "gguf":
        return inspect_gguf(source.label, source.path)
    return inspect_directory(source.label, source.path, trust_remote_code=trust_remote_code)


def _tokenizer(
    checkpoint: Checkpoint, name: str | Path | None, *, trust_remote_code: bool
) -> "PreTrainedTokenizerBase | None":
    if name is None:
        if not checkpoint.has_tokenizer:
            return None
        return open_tokenizer(checkpoint.label, checkpoint.path, trust_remote_code=trust_remote_code)
    source = resolve(name, files=TOKENIZER_FILES)
    if source.kind != "gguf" and not has_tokenizer(source.path):
        raise ModelError(f"tokenizer {source.label}: no tokenizer.json or other tokenizer file in it")
    return open_tokenizer(source.label, source.path, trust_remote_code=trust_remote_code)


def _check_options(dtype: str, device: str, attn: str | None) -> None:
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if attn is not None and attn not in attention_names():
        raise unknown_name("attention implementation", attn, attention_names())
    if device not in ("cpu", "auto"):
        _check_device(device)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device).tolist()  # a device without memory of its own (meta) holds no model
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise InputError(f'device "{device}" cannot be used here ({one_line(error)[:100]}); try cpu') from error
