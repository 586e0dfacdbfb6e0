"""Answers that a model writes, scored by their last number.

Greedy whatever the model's own generation settings say, in batches with padding on the left, so that all answers of a
batch start together. The model and its settings are left as they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError
from ..models.boundary import quiet
from ..specs import OPTIONS, checked
from .tasks import ExactMatch

__all__ = ["Answers", "generate_correct", "window_of"]

_NEXT_QUESTION = "\nQuestion:"  # a model without chat training goes on with the next one


class Answers(NamedTuple):
    """What the model wrote, and which of it was right."""

    correct: NDArray[np.int64]
    """1 or 0 for each sample"""
    texts: list[str]


def generate_correct(
    model: Any, task: ExactMatch, tokenizer: Any, *, batch_size: int = 8, max_new_tokens: int = 512
) -> Answers:
    """The model's answers to the task's prompts, one for each sample.

    Where prompt and answer do not fit the model's window, half of it at most is kept for the answer, and the prompt is
    cut on its left: the same for every sample, so that an answer never depends on the others of its batch. Inside
    `with inject(...)` the answers are those of the noisy model.
    """
    checked({"batch_size": batch_size, "max_new_tokens": max_new_tokens}, OPTIONS)
    if not hasattr(model, "generate"):
        raise ModelError(f"{type(model).__name__}: cannot write answers, expected a causal language model")
    window = window_of(model)
    new = max_new_tokens if window is None else min(max_new_tokens, window // 2)
    prompts = [prompt if window is None else prompt[-(window - new) :] for prompt in task.prompts]
    texts = [
        text
        for at in range(0, len(prompts), batch_size)
        for text in _answers(model, tokenizer, prompts[at : at + batch_size], new)
    ]
    return Answers(task.correct(texts), texts)


def window_of(model: Any) -> int | None:
    """The number of tokens that the model takes at once, None where it does not say."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    window = getattr(config, "max_position_embeddings", None)
    return window if isinstance(window, int) and window > 0 else None


def _answers(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], new: int) -> Iterator[str]:
    ids, mask = _left_padded(prompts)
    ends = _end_tokens(model, tokenizer)
    with quiet(), torch.no_grad():
        out = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=_greedy(new, ends, tokenizer.pad_token_id),
        )
    for row in out[:, ids.shape[1] :].tolist():
        length = next((at for at, token in enumerate(row) if token in ends), len(row))
        text: str = tokenizer.decode(row[:length], skip_special_tokens=True)
        yield text.partition(_NEXT_QUESTION)[0]


def _greedy(new: int, ends: Sequence[int], pad: int | None) -> Any:
    """Settings for plain greedy decoding. All are given, because what is not is filled in from the model's own."""
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=new,
        min_new_tokens=0,
        min_length=0,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        typical_p=1.0,
        epsilon_cutoff=0.0,
        eta_cutoff=0.0,
        repetition_penalty=1.0,
        encoder_repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        length_penalty=1.0,
        use_cache=True,
        output_scores=False,
        output_logits=False,
        output_attentions=False,
        output_hidden_states=False,
        return_dict_in_generate=False,
        eos_token_id=[*ends] or None,
        pad_token_id=pad if pad is not None else (ends[0] if ends else 0),
    )


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: the model's own, or else the tokenizer's."""
    own = getattr(model.generation_config, "eos_token_id", None)
    own = tokenizer.eos_token_id if own is None else own
    return [own] if isinstance(own, int) else [*(own or ())]


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids, mask = torch.zeros(2, len(prompts), longest, dtype=torch.int64)
    for at, prompt in enumerate(prompts):
        ids[at, longest - len(prompt) :] = torch.tensor(prompt)
        mask[at, longest - len(prompt) :] = 1
    return ids, mask
