"""Logits against logits, position by position, in float64: normalisers, top-1 and KL divergence.

With x and y the clean and noisy logits of a position, each less its largest,

    KL(clean || noisy) = sum e^x (x - y) / sum e^x + log(sum e^y / sum e^x)

is the textbook formula with one exponential a value fewer, and no logarithm of a probability is formed whose rounding
would have to cancel: the error is a few 1e-16 nats where the logits differ little. With exponentials of float32 it is
several percent off at 5e-7 nats, even if the sums are float64.

Work is done some rows at a time in buffers that are allocated once: fresh memory is dear, and a [2048, 50000] tensor
in float64 three times over does not fit everywhere.
"""

import torch
from torch import Tensor

__all__ = ["CHUNK", "Buffers", "home_of", "kl_of_shifted", "rows_at_once", "shift_", "top_1"]

CHUNK = 2**20
"""logits worked on at a time: enough for the threads, 25 MB in three float64 buffers, and near the cache"""
_BLOCK = 256  # columns whose largest is found together: torch finds the largest ten times faster than where it is


def home_of(device: torch.device) -> torch.device:
    """Where float64 arithmetic on a device's tensors is done: there, or on the CPU where the device has none."""
    return torch.device("cpu") if device.type == "mps" else device


def rows_at_once(vocab: int) -> int:
    """How many positions fit into a chunk."""
    return max(1, CHUNK // max(1, vocab))


class Buffers:
    """Room for the clean logits, the noisy ones and their exponentials, of one chunk."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self._held = torch.empty(3, min(rows, rows_at_once(vocab)), vocab, dtype=torch.float64, device=device)

    def of(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """The three, for that many rows; what they contain is arbitrary."""
        clean, noisy, exponentials = self._held[:, :rows]
        return clean, noisy, exponentials


def top_1(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The first index of the largest logit of each row, as `argmax` gives it, and that logit; nan counts as largest."""
    rows, vocab = logits.shape
    whole = vocab - vocab % _BLOCK
    largest = logits[:, :whole].view(rows, -1, _BLOCK).amax(-1) if whole else logits[:, :0]
    if whole < vocab:
        largest = torch.cat([largest, logits[:, whole:].amax(-1, keepdim=True)], dim=1)
    start = largest.argmax(-1, keepdim=True) * _BLOCK
    columns = (start + torch.arange(_BLOCK, device=logits.device)).clamp_(max=vocab - 1)
    within = logits.gather(1, columns).argmax(-1, keepdim=True)
    index = (start + within).squeeze(1)
    return index, logits.gather(1, index.unsqueeze(1)).squeeze(1)


def shift_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Takes the largest logit of each row from all of them; gives what `top_1` does.

    In float64, and so exact for logits of any narrower dtype.
    """
    top, best = top_1(logits)
    logits.sub_(best.unsqueeze(1))
    return top, best


def kl_of_shifted(clean: Tensor, noisy: Tensor, noisy_sum: Tensor, work: Tensor) -> Tensor:
    """KL(clean || noisy) of each row in nats, from shifted logits and the sum of the noisy exponentials.

    A token that both exclude by a logit of -inf adds nothing, one that only the noisy logits exclude makes it
    infinite; nan and +inf give nan. `noisy` and `work` are overwritten.
    """
    weights = torch.exp(clean, out=work)
    clean_sum = weights.sum(-1)
    difference = torch.sub(clean, noisy, out=noisy)
    weighted = torch.mul(weights, difference, out=work)
    cross = weighted.sum(-1)
    if not bool(cross.isfinite().all()):  # 0 * inf: some token is excluded
        weighted.masked_fill_(difference == torch.inf, torch.inf).masked_fill_(clean == -torch.inf, 0)
        cross = weighted.sum(-1)
    kl = cross / clean_sum + (noisy_sum / clean_sum).log()
    return kl.clamp_(min=0)  # rounding may leave -1e-16 of a zero
