"""tracing(): a context manager that records whatever runs inside, for code of one's own and models of any kind.

with tracing(model, "gpu.trace"):
    my_loop(model)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from ..errors import InputError, NothingMatched
from .assembling import Made, assemble
from .identity import Witness
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
) -> Iterator[Tracing]:
    """Records every call of `model` inside the block, and writes the trace to `path` when it ends well.

    There is no noise floor in it, since nobody can run the block again: compare it with a reference that has one,
    such as one made by `trace(model, run=...)`.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    layout, given, witness = layout_of(model, blocks), Tracing(), Witness()
    recorder = Recorder(layout, wanted_sites(sites, backward=backward), seed=seed, full=full)
    recorder.stage = "run"
    with witness.watching(model), recorder:
        yield given
    if not recorder.rows:
        raise NothingMatched("trace: the model did not run inside the `with` block, or no site matches")
    given._trace = assemble(
        Made(recorder, witness),
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
