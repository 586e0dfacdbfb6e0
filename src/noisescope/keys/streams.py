"""The generators of the process, which belong to the user: what draws from them inside leaves them as they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["streams_kept"]


@contextmanager
def streams_kept() -> Iterator[None]:
    """Afterwards the generators of Python, NumPy and torch, on every device, stand where they stood.

    For code of other people that draws from whichever it likes; our own draws take a `Key`.
    """
    import numpy as np
    import torch

    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
