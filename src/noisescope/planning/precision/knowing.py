"""The format map that a plan is made from: read from where an earlier plan left it, or made."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ...diagnosis.progress import Progress
from ...keys import fingerprint_model
from ...quantising.format_map import FormatMap
from ...quantising.map_file import load_map, save_map
from ...quantising.mapping import map_formats
from ...sites import Layout
from .texts import Texts

__all__ = ["mapped"]


def mapped(
    model: nn.Module,
    texts: Texts,
    schemes: Sequence[str],
    *,
    seed: int,
    layout: Layout,
    file: str | Path | None,
    progress: Progress,
) -> FormatMap:
    """The map of these formats, `weights` or `weights/activations` each."""
    weights = dict.fromkeys(part for scheme in schemes if (part := scheme.partition("/")[0]) != "none")
    inputs = dict.fromkeys(part for scheme in schemes if (part := scheme.partition("/")[2]))
    names = (*weights, *(f"none/{name}" for name in inputs))
    question = {"weights": fingerprint_model(model), "data": texts.mapped.fingerprint, "seed": seed}
    if file is not None and (kept := load_map(file, question, names)) is not None:
        return kept
    tick = progress("map", len(texts.mapped.batches))
    found = map_formats(
        model, texts.mapped, tuple(weights), activations=tuple(inputs), seed=seed, layout=layout, progress=tick
    )
    if file is not None:
        save_map(found, file, question)
    return found
