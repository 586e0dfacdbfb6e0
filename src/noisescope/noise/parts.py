"""A tensor in parts, each with a draw of its own, disturbed on as many threads as torch uses.

torch draws random numbers on one thread, which would be most of what noise costs. Parts depend on shape and device
only, never on the scale nor on the number of threads, so draws are common across scales and across machines.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from ..keys import Key

__all__ = ["PART", "each_part"]

PART = 2**15
"""elements of a part on a CPU: they stay in the cache of one core, and torch keeps them all on one thread"""


def each_part(value: Tensor, key: Key, disturb_: Callable[[Tensor, torch.Generator], None]) -> None:
    """Calls `disturb_` with every part of the tensor, which share its memory, and a generator for that part alone."""
    if value.device.type != "cpu" or not value.is_contiguous() or value.numel() <= PART:
        disturb_(value, key.generator(value.device))
        return
    parts = torch.split(value.view(-1), PART)
    _spread(lambda number: disturb_(parts[number], key.part(str(number)).generator()), len(parts))


def _spread(work: Callable[[int], None], pieces: int) -> None:
    """Calls `work` with every number below `pieces`, on this thread and on others, and returns when all are done."""
    numbers = iter(range(pieces))
    helpers = min(torch.get_num_threads(), pieces) - 1
    inference = torch.is_inference_mode_enabled()
    others = [_helpers().submit(_help, work, numbers, inference) for _ in range(helpers)]
    try:
        _take(work, numbers)
    finally:
        for other in others:
            if not other.cancel():
                other.result()


def _take(work: Callable[[int], None], numbers: Iterator[int]) -> None:
    for number in numbers:
        work(number)


def _help(work: Callable[[int], None], numbers: Iterator[int], inference: bool) -> None:
    """The same on another thread, which has none of the modes of the first."""
    with torch.inference_mode(inference), torch.no_grad(), torch._C.DisableTorchFunction():
        _take(work, numbers)


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="noisescope")


if hasattr(os, "register_at_fork"):  # a forked process has the executor but none of its threads
    os.register_at_fork(after_in_child=_helpers.cache_clear)
