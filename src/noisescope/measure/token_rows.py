"""Rows of tokens: packed into batches, or taken out of the batches that a caller brings.

A caller's batches are taken apart and packed anew, because they may be padded on the left, where models that are
given no positions would count the padding. `labels` are not read: what is predicted is the next token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..models.boundary import one_line
from .batches import Batch

__all__ = ["TokenRow", "check_ids", "pack", "unpack"]

_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True)
class TokenRow:
    """Token ids, of which those from index `first` on are predicted."""

    ids: tuple[int, ...]
    first: int = 1

    @property
    def predicts(self) -> bool:
        """False for a row of one token, which has nothing before it to predict it from."""
        return len(self.ids) > self.first


def pack(rows: Sequence[TokenRow], samples: Sequence[int], *, batch_size: int) -> tuple[Batch, ...]:
    """Batches of neighbouring rows, padded at the end to the longest of each batch."""
    starts = range(0, len(rows), batch_size)
    return tuple(_pack(rows[at : at + batch_size], tuple(samples[at : at + batch_size])) for at in starts)


def _pack(rows: Sequence[TokenRow], samples: tuple[int, ...]) -> Batch:
    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)  # 0 is a token of every vocabulary; the mask hides it
    mask, predicted = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for at, row in enumerate(rows):
        length = len(row.ids)
        ids[at, :length] = torch.tensor(row.ids)
        mask[at, :length] = 1
        predicted[at, row.first : length] = True
    return Batch(ids, mask, predicted[:, 1:], samples)


def unpack(batch: object, *, where: str) -> Iterator[TokenRow]:
    """The rows of a dictionary with input_ids (and attention_mask), or of a tensor of ids; padding is dropped."""
    given: Mapping[str, Any] = {"input_ids": batch} if isinstance(batch, Tensor) else _mapping(batch, where)
    if "input_ids" not in given:
        raise InputError(f'{where}: no "input_ids" (has: {one_line(", ".join(map(str, given)))})')
    ids = _matrix(given["input_ids"], f"{where}: input_ids")
    mask = _matrix(given["attention_mask"], f"{where}: attention_mask") if "attention_mask" in given else None
    if mask is not None and mask.shape != ids.shape:
        raise InputError(f"{where}: attention_mask: got shape {[*mask.shape]}, expected {[*ids.shape]} as of input_ids")
    for at, row in enumerate(ids):
        kept = row if mask is None else row[_span(mask[at], f"{where}: attention_mask: row {at}")]
        if len(kept):
            yield TokenRow(tuple(kept.tolist()))


def check_ids(row: TokenRow, *, where: str, vocab_size: int | None) -> TokenRow:
    """The row, if all its ids can be tokens of the model."""
    largest = _LARGEST_ID if vocab_size is None else vocab_size - 1
    for token in row.ids:
        if not 0 <= token <= largest:
            known = "a token" if vocab_size is None else f"0 to {largest}, the model's vocabulary"
            raise InputError(f"{where}: token id {token}, expected {known}; is this the model's tokenizer?")
    return row


def _mapping(batch: object, where: str) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    raise InputError(f"{where}: got {type(batch).__name__}, expected a dictionary of tensors with input_ids")


def _matrix(value: object, what: str) -> Tensor:
    """Whole numbers, rows x tokens; a single row may come without its outer dimension."""
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{what}: not a tensor ({one_line(error)[:100]}); expected rows x tokens") from error
    if tensor.ndim not in (1, 2):
        raise InputError(f"{what}: got shape {[*tensor.shape]}, expected rows x tokens")
    if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
        raise InputError(f"{what}: got {str(tensor.dtype).removeprefix('torch.')}, expected whole numbers")
    return tensor.reshape(-1, tensor.shape[-1]).to(torch.int64)


def _span(mask: Tensor, what: str) -> slice:
    """Where a row's tokens are: one stretch, with padding before or after it."""
    at = mask.nonzero().flatten()
    if not len(at):
        return slice(0, 0)
    first, last = int(at[0]), int(at[-1])
    if last - first + 1 != len(at):
        raise InputError(f"{what}: padding between tokens, expected it at one end")
    return slice(first, last + 1)
