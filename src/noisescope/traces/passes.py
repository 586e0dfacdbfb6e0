"""What a traced model is run on: batches of rows, each in one pass, or its last tokens one by one from a cache."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from ..diagnosis.accepting import data_for, vocabulary_of
from ..diagnosis.prompts import open_prompts
from ..errors import InputError, ModelError, quoted
from ..injection.survey import kept_inputs
from ..measure.generating import window_of

if TYPE_CHECKING:
    from .recorded import Trace

__all__ = ["BATCH", "FEW_ROWS", "FEW_TOKENS", "ROWS", "TOKENS", "OnOutput", "Passes", "batches_of", "open_passes"]

ROWS, TOKENS, BATCH = 8, 128, 8
FEW_ROWS, FEW_TOKENS = 2, 32
"""where whole logits are kept"""
FLOOR_TOKENS = 128
"""of the first rows, on which the noise floor is measured"""
_WHOLE = (torch.int64, torch.int32)
OnOutput = Callable[[Tensor], None]


@dataclass(frozen=True, eq=False)
class Passes:
    """Batches of a model's inputs, and how they are run."""

    name: str
    batches: tuple[dict[str, Any], ...]
    decode: int = 0
    """tokens at the end of each row that are computed one by one"""
    backward: bool = False
    """whether the gradients of the loss are computed too"""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the first tensor of each batch: rows x tokens."""
        return tuple(
            next((tuple(one.shape) for one in batch.values() if isinstance(one, Tensor)), ()) for batch in self.batches
        )

    @property
    def rows(self) -> int:
        """Of all batches."""
        return sum(shape[0] for shape in self.shapes if shape)

    @property
    def tokens(self) -> int:
        """Of all rows, padding included."""
        return sum(shape[0] * shape[1] for shape in self.shapes if len(shape) > 1)

    @property
    def ids(self) -> tuple[dict[str, Tensor], ...]:
        """What is whole numbers in each batch: token ids and masks."""
        return tuple(
            {
                name: one.detach().cpu()
                for name, one in batch.items()
                if isinstance(one, Tensor) and not one.is_floating_point()
            }
            for batch in self.batches
        )

    def few(self) -> "Passes":
        """The first rows, up to 128 tokens or one row."""
        shape = self.shapes[0]
        rows = max(1, FLOOR_TOKENS // shape[1]) if len(shape) > 1 else 1
        some = {name: _rows(one, rows, shape[:1]) for name, one in self.batches[0].items()}
        return Passes(self.name, (some,), self.decode, self.backward)

    def run(
        self,
        model: nn.Module,
        *,
        on_stage: Callable[[str], None] = lambda _stage: None,
        on_output: OnOutput = lambda _logits: None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs the model on all of them; `on_stage` is told before each pass whether it is `prefill` or `decode`."""
        for batch in self.batches:
            on_stage("prefill")
            if self.decode:
                self._decode(model, batch, on_stage, on_output)
            else:
                output = model(**kept_inputs(batch))
                on_output(logits_of(output))
                if self.backward:
                    _differentiate(model, logits_of(output), batch)
            on_batch()

    def _decode(
        self, model: nn.Module, batch: Mapping[str, Any], on_stage: Callable[[str], None], on_output: OnOutput
    ) -> None:
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        start = ids.shape[1] - self.decode
        output: Any = None
        for end in range(start, ids.shape[1] + 1):
            given = {"input_ids": ids[:, :end] if end == start else ids[:, end - 1 : end], "use_cache": True}
            if mask is not None:
                given["attention_mask"] = mask[:, :end]
            if end > start:
                on_stage("decode")
                given["past_key_values"] = output.past_key_values
            output = model(**given)
            if getattr(output, "past_key_values", None) is None:
                raise ModelError(f"decode: {type(model).__name__} gives no cache of keys and values; leave it out")
            on_output(logits_of(output))


def open_passes(
    prompts: object,
    model: nn.Module,
    tokenizer: object = None,
    *,
    n_samples: int = ROWS,
    max_length: int | None = None,
    batch_size: int = BATCH,
    decode: int = 0,
    backward: bool = False,
    seed: int = 0,
) -> Passes:
    """The passes over texts, a data file, token ids, a dict of the model's inputs, or several of these dicts."""
    dicts = prompts if isinstance(prompts, (list, tuple)) and all(isinstance(p, Mapping) for p in prompts) else None
    if dicts or isinstance(prompts, (Mapping, Tensor)) or (prompts is None and tokenizer is None):
        batches = [
            open_prompts(one, model, seed=seed, rows=n_samples, tokens=max_length or TOKENS)
            for one in (dicts or [prompts])
        ]
        name = "token ids" if prompts is not None else "random tokens"
    else:
        length = min(max_length or TOKENS, window_of(model) or TOKENS)
        data = data_for(
            model, prompts, tokenizer, n_samples=n_samples, batch_size=batch_size, max_length=length, seed=seed
        )
        name, device = data.name, next(model.parameters()).device
        batches = [open_prompts(batch.inputs(device), model) for batch in data.batches]
    found = Passes(name, tuple(batches), decode, backward)
    _check(found)
    return found


def batches_of(trace: "Trace", model: nn.Module) -> list[dict[str, Tensor]]:
    """The token ids that another trace was made on, if a model like this can be given them."""
    name = trace.name or "the trace"
    for batch in trace.ids:
        _refuse_batch(name, batch, model)
    if not trace.ids:
        raise InputError(f"{name}: does not say which tokens it was run on; compare it by hand")
    try:
        return [open_prompts(dict(batch), model) for batch in trace.ids]
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _refuse_batch(name: str, batch: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raises for what is not rows of tokens that the model has: a file may say anything."""
    ids, window = batch.get("input_ids"), window_of(model)
    if ids is None or ids.ndim != 2 or any(one.shape != ids.shape for one in batch.values()):
        raise InputError(f"{name}: does not hold rows of token ids; the file is damaged, or not of a language model")
    if window is not None and ids.shape[1] > window:
        raise InputError(f"{name}: has rows of {ids.shape[1]} tokens, and the model's window is {window}")
    limits = _limits(model, ids.shape[1])
    for argument, given in batch.items():
        if argument not in limits:
            raise InputError(f"{name}: got {quoted(argument)} beside its tokens, expected {', '.join(limits)}")
        most, kinds = limits[argument], _WHOLE if argument.endswith("ids") else (*_WHOLE, torch.bool)
        if given.dtype not in kinds or not bool(((given >= 0) & (given < most)).all()):
            raise InputError(f"{name}: its {argument} are not whole numbers from 0 to {most - 1}; the file is damaged")


def _limits(model: nn.Module, tokens: int) -> dict[str, int]:
    """Arguments of this model that a trace may fill, and what their numbers are below."""
    config, known = getattr(model, "config", None), vocabulary_of(model) or 2**31
    kinds = getattr(config, "type_vocab_size", None)
    found = {
        "input_ids": known,
        "attention_mask": 2,
        "token_type_ids": kinds if isinstance(kinds, int) and kinds else known,
        "position_ids": window_of(model) or max(tokens, 2**20),
    }
    if getattr(config, "is_encoder_decoder", False):
        found |= {"decoder_input_ids": known, "decoder_attention_mask": 2}
    taken = signature(model.forward).parameters
    any_taken = any(one.kind is Parameter.VAR_KEYWORD for one in taken.values())
    return {argument: most for argument, most in found.items() if any_taken or argument in taken}


def _check(passes: Passes) -> None:
    if passes.decode:
        if passes.backward:
            raise InputError("decode: gradients are of whole rows; leave out decode or backward")
        shortest = min((shape[1] for shape in passes.shapes if len(shape) > 1), default=0)
        if not all("input_ids" in batch for batch in passes.batches) or passes.decode >= shortest:
            raise InputError(
                f"decode: got {passes.decode}, expected less than the {shortest} tokens of the shortest batch"
            )


def _rows(one: Any, rows: int, of: tuple[int, ...]) -> Any:
    return one[:rows] if isinstance(one, Tensor) and tuple(one.shape[:1]) == of else one


def logits_of(output: Any) -> Tensor:
    """What a model gives: its logits, or the first tensor of numbers."""
    found = getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not leaves:
        raise ModelError(f"the model returned {type(output).__name__} without a tensor of numbers in it")
    return leaves[0]


def _differentiate(model: nn.Module, logits: Tensor, batch: Mapping[str, Any]) -> None:
    """The gradients of the next-token loss, down to the embedding; no parameter's `grad` is touched.

    The loss is summed over all real tokens that follow a real one: a mean would make gradients smaller than float16
    can hold, and what padding predicts is nobody's affair.
    """
    ids, mask = batch.get("decoder_input_ids", batch.get("input_ids")), batch.get("attention_mask")
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not isinstance(ids, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape or not weights:
        raise InputError("backward: needs token ids, logits for each of them, and a weight that requires gradients")
    targets = ids[:, 1:]
    if mask is not None:
        targets = targets.masked_fill((mask[:, 1:] == 0) | (mask[:, :-1] == 0), -100)
    loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten(), reduction="sum")
    torch.autograd.grad(loss, weights[:1], allow_unused=True)
