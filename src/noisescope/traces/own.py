"""tracing(): a context manager that records whatever runs inside, for code of one's own and models of any kind.

with tracing(model, "gpu.trace"):
    my_loop(model)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from ..diagnosis.accepting import refuse_training
from ..errors import InputError, NothingMatched, StoreError
from ..store.files import make_directory, store_errors
from .assembling import Made, assemble
from .identity import Witness
from .options import refuse_no_gradients
from .recorded import Trace
from .recorder import Recorder
from .running import layout_of, wanted_sites

__all__ = ["Tracing", "tracing"]


class Tracing:
    """What `tracing` gives: the trace is there once the block has ended."""

    def __init__(self) -> None:
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        if self._trace is None:
            raise InputError("trace: is there once the `with` block has ended")
        return self._trace


@contextmanager
def tracing(
    model: nn.Module,
    path: str | Path | None = None,
    *,
    sites: str | None = None,
    full: bool = False,
    backward: bool = False,
    checkpoint: str | None = None,
    blocks: str | None = None,
    seed: int = 0,
    name: str | None = None,
    overwrite: bool = False,
) -> Iterator[Tracing]:
    """Records every call of `model` inside the block, and writes the trace to `path` when it ends well.

    There is no noise floor in it, since nobody can run the block again: compare it with a reference that has one,
    such as one made by `trace(model, run=...)`. The model must be in eval mode, as for `trace`. A file that is there is
    replaced with `overwrite` alone; a place that cannot be written to is refused before anything runs.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    refuse_training(model)
    if path is not None:
        _refuse_place(Path(path), overwrite=overwrite)
    layout, given, witness = layout_of(model, blocks), Tracing(), Witness()
    recorder = Recorder(layout, wanted_sites(sites, backward=backward), seed=seed, full=full)
    recorder.stage = "run"
    with witness.watching(model), recorder:
        yield given
    rows = recorder.taken()
    if not rows:
        raise NothingMatched("trace: the model did not run inside the `with` block, or no site matches")
    if backward:
        refuse_no_gradients(rows)
    given._trace = assemble(
        Made(rows, witness),
        model=model,
        layers=len(layout.blocks),
        tokenizer=None,
        data="own code",
        decode=0,
        backward=backward,
        outputs_only=False,
        pattern=sites,
        emulated=(),
        checkpoint=checkpoint,
        seed=seed,
        name=name,
    )
    if path is not None:
        given.trace.save(path)


def _refuse_place(file: Path, *, overwrite: bool) -> None:
    """Raises for a file that could not be written at the end, or that must not be; its directory is there then."""
    make_directory(file.parent)
    with store_errors(file):
        if file.is_dir():
            raise StoreError(f"cannot write {file}: it is a directory, expected a file; choose another path")
        if not os.access(file.parent, os.W_OK):
            raise StoreError(f"cannot write {file}: permission denied; choose another path")
        if os.path.lexists(file) and not overwrite:
            raise InputError(f"{file}: is there already; use another path, or overwrite=True")
