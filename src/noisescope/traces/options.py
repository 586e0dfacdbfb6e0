"""Which options of trace() go together: what would be swallowed is refused, before anything runs."""

from collections.abc import Callable, Iterable

from torch import nn

from ..errors import InputError
from ..sites import Layout
from ..specs.checks import checked, optional, whole
from .recorded import Trace
from .recorder import Rows

__all__ = ["refuse_no_blocks", "refuse_no_gradients", "refuse_options"]

_CHECKS = {
    "decode": whole(0),
    "n_samples": optional(whole(1)),
    "max_length": optional(whole(1)),
    "batch_size": whole(1),
}


def refuse_options(
    model: object,
    prompts: object,
    run: Callable[[], object] | None,
    *,
    sites: str | None,
    inputs: bool,
    inputs_from: Trace | None,
    outputs_only: bool,
    backward: bool,
    decode: int,
    n_samples: int | None,
    max_length: int | None,
    batch_size: int,
) -> None:
    """Raises for options that one call cannot have together."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch module")
    numbers = {"decode": decode, "n_samples": n_samples, "max_length": max_length, "batch_size": batch_size}
    checked(numbers, _CHECKS)
    if backward and (inputs_from is not None or outputs_only):
        raise InputError("backward: gradients cannot be fed, and logits have none; leave out one of the two")
    if outputs_only and sites is not None:
        raise InputError("sites: logits alone have no other sites; leave it out")
    if outputs_only and inputs:
        raise InputError("inputs: a trace of logits alone has no hidden states; leave out one of the two")
    asked = [name for name, given in numbers.items() if given and name != "batch_size"]
    if run is not None:
        _refuse_run(run, prompts, outputs_only, asked)
    elif inputs_from is not None and prompts is None:
        for name in asked:
            raise InputError(f"{name}: tokens and stages are those of inputs_from; leave it out")


def _refuse_run(run: Callable[[], object], prompts: object, outputs_only: bool, asked: Iterable[str]) -> None:
    if not callable(run):
        raise InputError(f"run: got {type(run).__name__}, expected a function that runs the model")
    if prompts is not None:
        raise InputError("run: runs the model in place of prompts; leave out one of the two")
    if outputs_only:
        raise InputError("outputs_only: nobody knows which outputs of a run are meant; leave out one of the two")
    for name in asked:
        raise InputError(f"{name}: a run brings its own data and stages; leave it out")


def refuse_no_blocks(layout: Layout) -> None:
    """Raises where there are no hidden states to keep."""
    if not layout.blocks:
        raise InputError("inputs: the model has no blocks between which to keep hidden states; name them with blocks")


def refuse_no_gradients(rows: Rows) -> None:
    """Raises for a run that was to have gradients, and has none."""
    if not any(row.site.phase == "backward" for row in rows.values()):
        raise InputError("backward: no gradient was computed in the run; call backward() in it, or leave this out")
