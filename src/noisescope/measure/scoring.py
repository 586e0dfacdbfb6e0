"""Scores of a batch from its logits: KL to the clean run, top-1 flips, accuracy and likelihood, one sum per row.

This is what every experiment does after every forward pass, and it looks only at the positions whose prediction
counts. The clean run's logits are kept as `select` gives them, in the model's dtype:

    clean = select(model(**batch.inputs()).logits, batch)
    with inject(model, noise):
        scores = score(model(**batch.inputs()).logits, batch, clean)
    scores.kl_nats.sum() / scores.tokens.sum()

Logits that are not finite are not an error here: the sums of their row are nan, and `first_bad_row` says where.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .batches import Batch
from .divergence import Buffers, home_of, kl_of_shifted, rows_at_once, shift_

__all__ = ["RowScores", "first_bad_row", "kl_gradient", "score", "select"]


@dataclass(frozen=True, eq=False)
class RowScores:
    """Sums over the predicted tokens of each row of one or more batches, as arrays with one element per row.

    A row with a predicted position whose logits are not finite (nan, +inf, or no finite one at all) reads nan in what
    depends on them: that is why counts are float64 too. A target whose logit is -inf makes `nll_nats` infinite.
    """

    tokens: NDArray[np.int64]
    """predicted tokens"""
    kl_nats: NDArray[np.float64]
    """KL(clean || noisy); 0 if these are the scores of the clean run"""
    flips: NDArray[np.float64]
    """positions where the token with the largest logit (of equal ones the first) is another than in the clean run"""
    correct: NDArray[np.float64]
    """positions where it is the target"""
    nll_nats: NDArray[np.float64]
    """negative log-likelihood of the targets"""

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def concatenate(parts: Iterable["RowScores"]) -> "RowScores":
        """The rows of several batches, in their order."""
        listed = [_none(), *parts]
        return RowScores(*(np.concatenate([getattr(part, each.name) for part in listed]) for each in fields(RowScores)))


def score(logits: Tensor, batch: Batch, clean_logits: Tensor | None = None) -> RowScores:
    """The scores of each row, from the logits (rows x tokens x vocabulary) that the model gave for `batch.inputs()`.

    `clean_logits` are what `select` gave for the clean run; without them KL and flips are 0. Exact to what float64
    can do: see `divergence`. Takes 30 MB beyond its arguments, whatever their size.
    """
    places = _places(logits, batch)
    if clean_logits is not None and clean_logits.shape != (len(places), logits.shape[-1]):
        raise InputError(
            f"clean_logits: got shape {list(clean_logits.shape)}, "
            f"expected {[len(places), logits.shape[-1]]} (predicted tokens x vocabulary), as select() gives"
        )
    chunks = [torch.zeros(4, 0, dtype=torch.float64), *_score_chunks(logits, places, batch.targets, clean_logits)]
    row = batch.row_of_target.cpu().numpy()
    kl, flips, correct, nll = (
        np.bincount(row, found, minlength=batch.rows).astype(np.float64) for found in torch.cat(chunks, dim=1).numpy()
    )
    return RowScores(np.bincount(row, minlength=batch.rows).astype(np.int64), kl, flips, correct, nll)


def select(logits: Tensor, batch: Batch) -> Tensor:
    """The logits of the predicted positions, predicted tokens x vocabulary, in their own dtype: a copy, to be kept."""
    places = _places(logits, batch)
    return logits.detach().flatten(0, 1).index_select(0, places.to(logits.device))


@torch.no_grad()
def kl_gradient(logits: Tensor, batch: Batch, clean_logits: Tensor) -> Tensor:
    """The gradient, by the logits, of the KL that `score` gives, summed over a batch: q - p at predicted positions."""
    places, home = _places(logits, batch), home_of(logits.device)
    found, flat = torch.zeros_like(logits), logits.flatten(0, 1)
    step = rows_at_once(logits.shape[-1])
    for first in range(0, len(places), step):
        some = places[first : first + step].to(logits.device)
        noisy, clean = flat[some].to(home).double(), clean_logits[first : first + step].to(home).double()
        found.flatten(0, 1)[some] = (noisy.softmax(-1) - clean.softmax(-1)).to(found)
    return found


def first_bad_row(logits: Tensor, batch: Batch | None = None) -> int | None:
    """The first row with a position whose logits are not finite, or None; -inf excludes a token and is no fault.

    With `batch` only predicted positions are looked at: padding may be anything.
    """
    if batch is not None:
        _check(logits, batch)
    bad = ~logits.detach().amax(-1).isfinite()  # nan and +inf win, and -inf only where nothing is finite
    if batch is not None:
        bad = bad[:, :-1] & batch.predicted.to(bad.device)
    found = bad.nonzero()
    return int(found[0, 0]) if len(found) else None


def _none() -> RowScores:
    """No rows."""
    return RowScores(np.zeros(0, np.int64), *(np.zeros(0) for _ in range(4)))


def _check(logits: Tensor, batch: Batch) -> None:
    if logits.ndim != 3 or logits.shape[:2] != batch.input_ids.shape:
        raise InputError(
            f"logits: got shape {list(logits.shape)}, "
            f"expected {[*batch.input_ids.shape, 'vocabulary']}: those of batch.inputs()"
        )


def _places(logits: Tensor, batch: Batch) -> Tensor:
    """Where the predicted positions are among rows x tokens."""
    _check(logits, batch)
    row, token = batch.predicted.cpu().nonzero(as_tuple=True)
    return row * logits.shape[1] + token


@torch.no_grad()
def _score_chunks(logits: Tensor, places: Tensor, targets: Tensor, clean: Tensor | None) -> Iterator[Tensor]:
    """KL, flips, correct and negative log-likelihood of the positions, 4 x some of them at a time, on the CPU."""
    flat, vocab, home = logits.flatten(0, 1), logits.shape[-1], home_of(logits.device)
    step, buffers = rows_at_once(vocab), Buffers(len(places), vocab, home)
    for first in range(0, len(places), step):
        some = slice(first, first + step)
        x, y, work = buffers.of(len(places[some]))
        for at, run in _runs(places[some]):
            y[at : at + len(run)].copy_(flat[run[0] : run[0] + len(run)])
        yield _score_positions(y, targets[some].to(home), None if clean is None else x.copy_(clean[some]), work).cpu()


def _runs(places: Tensor) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Stretches of consecutive places, each with the number of its first: these are copied at once."""
    numbers = places.numpy()
    ends = np.flatnonzero(np.diff(numbers) != 1) + 1
    yield from zip([0, *ends], np.split(numbers, ends), strict=True)


def _score_positions(noisy: Tensor, targets: Tensor, clean: Tensor | None, work: Tensor) -> Tensor:
    """The four scores of some positions; all but the targets are buffers, and overwritten."""
    top, best = shift_(noisy)
    total = torch.exp(noisy, out=work).sum(-1)
    nll = total.log() - noisy.gather(1, targets.unsqueeze(1)).squeeze(1)
    correct = _counted(top == targets, best)
    if clean is None:
        return torch.stack([torch.zeros_like(nll), torch.zeros_like(nll), correct, nll])
    clean_top, clean_best = shift_(clean)
    flips = _counted(top != clean_top, best + clean_best)
    return torch.stack([kl_of_shifted(clean, noisy, total, work), flips, correct, nll])


def _counted(true: Tensor, best: Tensor) -> Tensor:
    """1 or 0, and nan where the largest logit is not finite."""
    return true.double().masked_fill_(~best.isfinite(), torch.nan)
