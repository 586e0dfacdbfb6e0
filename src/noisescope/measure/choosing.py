"""Which samples are used: each has a keyed random number, and those with the smallest are taken, in their own order.

One pass, memory for the chosen alone, without replacement. The choice of 50 is part of the choice of 100 under the
same seed, so that a longer run refines a shorter one.
"""

from collections.abc import Callable, Iterable
from heapq import heappush, heapreplace
from itertools import islice
from typing import TypeVar

from ..keys import Key

__all__ = ["choose", "first"]

T = TypeVar("T")
U = TypeVar("U")


def choose(candidates: Iterable[T], n: int, *, seed: int, make: Callable[[T], U | None]) -> list[U]:
    """n samples (or all, if there are fewer) made from the candidates; those that `make` gives None for do not count.

    `make` is called only for candidates that are among the chosen so far: some n * (1 + log(N / n)) of N.
    """
    heap: list[tuple[int, int, U]] = []  # the largest number on top, so numbers are kept negated
    for index, candidate in enumerate(candidates):
        number = -Key(seed, "data", step=index).digest
        if len(heap) == n and number < heap[0][0]:
            continue
        made = make(candidate)
        if made is not None:
            (heappush if len(heap) < n else heapreplace)(heap, (number, index, made))
    return [made for _, _, made in sorted(heap, key=lambda kept: kept[1])]


def first(candidates: Iterable[T], n: int, *, make: Callable[[T], U | None]) -> list[U]:
    """The first n samples made from the candidates, for sources that may never end."""
    made = (make(candidate) for candidate in candidates)
    return list(islice((one for one in made if one is not None), n))
