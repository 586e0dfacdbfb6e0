"""How a long run says where it is, without knowing who listens."""

from collections.abc import Callable
from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """Called when a stage begins, with its name and number of steps; gives what to call after each of them."""

    def __call__(self, stage: str, total: int, /) -> Callable[[], None]:
        """The stage's tick."""
        ...


def silent(_stage: str, _total: int) -> Callable[[], None]:
    """Says nothing."""
    return lambda: None
