"""What a diagnosis takes: a causal language model in eval mode, and data that it can read."""

from typing import Any

from torch import nn

from ..errors import InputError, ModelError
from ..injection import is_injecting
from ..measure.batches import EvaluationSet
from ..measure.generating import window_of
from ..measure.opening import open_data

__all__ = ["accept", "data_for", "refuse_training", "vocabulary_of"]


def accept(model: object) -> None:
    """Raises for what has no next token, or would not give the same one twice."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    config = getattr(model, "config", None)
    writes = getattr(model, "can_generate", None)
    if getattr(config, "is_encoder_decoder", False) or (callable(writes) and not writes()):
        raise ModelError(f"{type(model).__name__}: expected a causal language model, one that predicts next tokens")
    refuse_training(model)
    if is_injecting():
        raise InputError("model: an injection is open around this, so that nothing would be clean; close it first")


def refuse_training(model: nn.Module) -> None:
    """Raises if a part of the model is in training mode."""
    if (path := next((path for path, module in model.named_modules() if module.training), None)) is not None:
        which = f"{path} is" if path else "it is"
        raise InputError(
            f"model: {which} in training mode, where dropout adds noise of its own; call model.eval() first"
        )


def data_for(
    model: nn.Module,
    source: object,
    tokenizer: Any = None,
    *,
    n_samples: int = 50,
    batch_size: int = 16,
    max_length: int | None = None,
    seed: int = 0,
) -> EvaluationSet:
    """An evaluation set that fits the model: its window, and the tokens that it knows."""
    return open_data(
        source,
        tokenizer,
        n_samples=n_samples,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
        model_window=window_of(model),
        vocab_size=vocabulary_of(model),
    )


def vocabulary_of(model: nn.Module) -> int | None:
    """How many tokens the model knows, None where it does not say."""
    get = getattr(model, "get_input_embeddings", None)
    known = getattr(get() if callable(get) else None, "num_embeddings", None)
    return known if isinstance(known, int) else None
