"""Locating with a good device's trace: this device is traced on the same tokens and compared with it."""

from collections.abc import Iterator
from pathlib import Path

from torch import nn

from ..comparing import Comparison, compare
from ..comparing.words import verdict_line
from ..diagnosis.progress import Progress
from ..errors import InputError, quoted
from ..models import digest_of
from ..traces import Trace, trace
from ..traces.identity import structure_of
from ..traces.passes import batches_of
from .verdict import Evidence, Suspect

__all__ = ["against_reference", "compare_with", "evidence_of_reference"]


def compare_with(
    reference: Trace,
    model: nn.Module,
    *,
    checkpoint: str | Path | None,
    blocks: str | None,
    progress: Progress,
) -> Comparison:
    """The device at hand against a reference; fed with its inputs where it has them."""
    head = reference.head
    if head.structure != structure_of(model):
        raise InputError(f"reference: {reference.name or 'the trace'} is of another model, {quoted(head.model)}")
    suspect = trace(
        model,
        batches_of(reference, model),
        inputs_from=reference if reference.hidden else None,
        sites=head.sites_pattern,
        outputs_only=head.outputs_only,
        backward=head.backward,
        decode=head.decode,
        floor=False,
        checkpoint=_digest(checkpoint) if head.checkpoint is not None else None,
        blocks=blocks,
        seed=head.seed,
        progress=progress,
    )
    return compare(reference, suspect)


def _digest(checkpoint: str | Path | None) -> str | None:
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return digest_of(sorted(path.glob("*.safetensors")) if path.is_dir() else [path])


def evidence_of_reference(found: Comparison) -> Evidence:
    """What the comparison says, in a sentence."""
    return Evidence("reference", " ".join(verdict_line(found.sections).split()), 2.0 if found.fed else 1.0)


def against_reference(found: Comparison) -> Iterator[Suspect]:
    """A suspect for each layer that adds an error of its own."""
    for row in found.layers:
        if row.first is None:
            continue
        site, error = row.first.site, row.first.metrics.relative_error
        told = f"reference: relative error {error.value:.2g} [{error.low:.2g}, {error.high:.2g}]"
        bound = f", {row.first.tolerance:.2g} is tolerated" if row.first.tolerance is not None else ""
        yield Suspect(
            site.name, site.layer, site.operator, site.module, "other", False, (told + bound,), len(site.sizes)
        )
