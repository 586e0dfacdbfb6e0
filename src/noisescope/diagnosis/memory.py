"""Out of memory where everything depends on it, as one line; a single point that does not fit is a failed point."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import ModelError
from ..models.boundary import one_line

__all__ = ["enough_memory"]


@contextmanager
def enough_memory(batch_size: int) -> Iterator[None]:
    """Running out of memory inside is a ModelError that says what may help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        fewer = f"batch_size is {batch_size}: try fewer rows, or a smaller max_length"
        raise ModelError(f"out of memory ({one_line(error)}); {fewer}") from error


def _is_out_of_memory(error: Exception) -> bool:
    """On a processor torch raises a plain RuntimeError, which only its text tells apart."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error) or "not enough memory" in str(error)
