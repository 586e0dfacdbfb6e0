"""The inputs of a single pass: two rows of 32 tokens unless somebody has others."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..measure.generating import window_of
from .accepting import data_for, vocabulary_of

__all__ = ["ROWS", "TOKENS", "open_prompts"]

ROWS, TOKENS = 2, 32


def open_prompts(
    prompts: object,
    model: nn.Module,
    tokenizer: object = None,
    *,
    seed: int = 0,
    rows: int = ROWS,
    tokens: int = TOKENS,
) -> dict[str, Any]:
    """The model's inputs, on its device: from a dict of them, token ids, texts, or anything `open_data` takes."""
    if isinstance(prompts, Mapping):
        found = {name: _as_ids(given) for name, given in prompts.items()}
        if not found:
            raise InputError("prompts: got no inputs, expected a dict such as {'input_ids': ...}")
    elif isinstance(prompts, Tensor):
        found = {"input_ids": prompts if prompts.ndim > 1 else prompts.unsqueeze(0)}
    elif prompts is None and tokenizer is None:
        found = {"input_ids": _any_tokens(model, rows, tokens, seed)}
    else:
        found = _texts(prompts, model, tokenizer, seed, rows, tokens)
    ids = found.get("input_ids")
    if isinstance(ids, Tensor):
        _check_ids(ids, model)
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            found.setdefault("decoder_input_ids", ids)
    if hasattr(getattr(model, "config", None), "use_cache"):
        found.setdefault("use_cache", False)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {name: given.to(device) if isinstance(given, Tensor) else given for name, given in found.items()}


def _texts(prompts: Any, model: nn.Module, tokenizer: object, seed: int, rows: int, tokens: int) -> dict[str, Any]:
    if isinstance(prompts, (list, tuple)) and len(prompts) == 1:
        prompts = [*prompts, *prompts]
    length = min(tokens, window_of(model) or tokens)
    data = data_for(model, prompts, tokenizer, n_samples=rows, batch_size=rows, max_length=length, seed=seed)
    return data.batches[0].inputs()


def _as_ids(given: Any) -> Any:
    """Rows of whole numbers, or one row, as token ids; anything else as it is."""
    rows = [given] if isinstance(given, (list, tuple)) and all(type(one) is int for one in given) else given
    if not isinstance(rows, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in rows):
        return given
    if not all(type(one) is int and len(row) == len(rows[0]) for row in rows for one in row):
        return given
    return torch.tensor(rows)


def _check_ids(ids: Tensor, model: nn.Module) -> None:
    known = vocabulary_of(model)
    if not ids.numel():
        raise InputError("prompts: got no tokens, expected texts or token ids")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"prompts: got {ids.dtype}, expected token ids, which are whole numbers")
    if known is not None and not bool(((ids >= 0) & (ids < known)).all()):
        wrong = ids[(ids < 0) | (ids >= known)][0]
        raise InputError(f"prompts: got token {int(wrong)}, but the model knows 0 to {known - 1}")


def _any_tokens(model: nn.Module, rows: int, tokens: int, seed: int) -> Tensor:
    """Tokens drawn by the seed, for a model that came without a tokenizer."""
    vocabulary = vocabulary_of(model)
    if vocabulary is None:
        raise InputError("prompts: cannot make up tokens for this model; pass token ids, or its inputs in a dict")
    length = min(tokens, window_of(model) or tokens)
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))
