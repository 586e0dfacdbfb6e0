"""`noisescope locate`: whether the device computes as it should, and if not, at which operator.

$ noisescope locate --simulate saturation:0.2@15.linear
repeat      clean (2 runs of 730 calls)
host        first deviation  model.layers.15.mlp.down_proj.linear.0.forward   6 of 36864 elements, ...
identities  rows scaled, known, checksum: fails at model.layers.15.mlp.down_proj.linear.0.forward; nowhere else
weights     all 272 tensors are those of the file
Verdict: FAULTY   layer 15, linear (mlp.down_proj), looks like clipping   ...
truth: layer 15, linear (mlp.down_proj), rank 1
Report: noisescope-locate/verdict.html

The exit code is the verdict: 0 healthy, 10 faulty, 11 inconclusive.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, printable
from ..report.verdict import FILES, truth_line
from ..specs.checks import number, one_of, optional, text, whole
from ..store.files import store_errors
from .bars import bars
from .flags import checked_flags, flag, flags_named
from .interrupts import interruptible
from .loading import (
    Attention,
    Blocks,
    Device,
    Dtype,
    ModelName,
    Tokenizer,
    TrustRemoteCode,
    load_model,
    say_which_model,
)
from .run_directory import refuse_place, whose
from .screen import show

if TYPE_CHECKING:
    from ..locating import Verdict
    from ..models import LoadedModel

__all__ = ["METHODS", "locate"]

METHODS = ("auto", "repeat", "identities", "host", "srdd", "fingerprint")
"""as `locating` has them, which takes torch to import"""
_CHECKS = {
    "method": one_of("method", METHODS),
    "budget": optional(number(above=0)),
    "runs": whole(1),
    "precision_mode": optional(text),
}
_FIELDS = ("method", "budget", "runs", "simulate", "reference", "precision_mode", "data", "seed", "blocks")
"""what errors of the library may begin with"""


def locate(
    context: typer.Context,
    model: ModelName = None,
    method: Annotated[
        str,
        typer.Option(
            help="repeat: every call twice; host: again on the CPU; identities: algebra that must hold; "
            "auto: these three; srdd: rank layers by their answer to noise; fingerprint: by how well they explain the "
            "difference to the logits of --reference.",
            metavar=f"[{'|'.join(METHODS)}]",
        ),
    ] = "auto",
    simulate: Annotated[
        list[str] | None,
        typer.Option(
            help="Put a fault into the device, to see whether it is found; repeatable. "
            "Such as saturation:0.2@15.linear, noise@9,sparsity=0.1 or spike:1@head,p=0.5.",
            metavar="<kind:magnitude@layer[.operator]>",
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Forward passes that it may take; under 15, auto leaves identities out.")
    ] = None,
    runs: Annotated[int, typer.Option(help="How often each call is made; more find rarer faults.")] = 2,
    precision_mode: Annotated[
        str | None, typer.Option(help="What the device does otherwise by contract, such as tf32.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="A trace of the model on a good device: compare with it too.", metavar="<file>"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Text, JSONL or parquet file to take two rows from; none: a built-in text.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data and simulated faults.")] = 0,
    output: Annotated[str, typer.Option(help="Directory of the verdict.", metavar="<path>")] = "noisescope-locate",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a verdict that is there.")] = False,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    attn: Attention = None,
    tokenizer: Tokenizer = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Find out whether the device computes as it should, and where it does not. Needs no other device."""
    checked_flags(context, _CHECKS)
    home = Path(output)
    _refuse(home, overwrite=overwrite)

    with interruptible():
        say_which_model(model)
        from ..faults import parse_fault
        from ..locating import locate as run
        from ..measure.sources import require_file
        from ..traces import load_trace

        if data is not None:
            flag("--data", require_file, data)
        good = flag("--reference", load_trace, reference) if reference is not None else None
        faults = [flag("--simulate", lambda given: parse_fault(given, seed=seed), given) for given in simulate or ()]
        loaded = load_model(
            model, dtype=dtype, device=device, attn=attn, tokenizer=tokenizer, trust_remote_code=trust_remote_code
        )
        with flags_named(_FIELDS, context), bars() as progress:
            verdict = run(
                loaded.model,
                data,
                tokenizer=loaded.tokenizer,
                method=method,
                budget=budget,
                runs=runs,
                simulate=faults,
                precision_mode=precision_mode,
                checkpoint=_checkpoint(loaded),
                reference=good,
                blocks=blocks,
                seed=seed,
                name=loaded.name,
                progress=progress,
            )
        show(_told(verdict))  # before it is saved: it took a while, and the disk may be full
        _refuse(home, overwrite=overwrite)
        page = verdict.save(home)
    show(f"Report: {printable(str(page))}\n")
    return verdict.exit_code


def _told(verdict: "Verdict") -> str:
    """What each method found, the verdict and, for simulated faults, the truth."""
    lines = [*str(verdict).splitlines(), *(f"truth: {truth_line(row)}" for row in verdict.sections["truth"])]
    return "".join(f"{printable(line)}\n" for line in lines)


def _checkpoint(loaded: "LoadedModel") -> Path | None:
    """Where the weights came from; a GGUF file holds them in another form."""
    if loaded.source == "gguf":
        return None
    return loaded.weights[0] if len(loaded.weights) == 1 else loaded.path


def _refuse(home: Path, *, overwrite: bool) -> None:
    """Raises for a directory that could not be used at the end, or that must not be."""
    with store_errors(home):
        refuse_place(home, list(FILES.values()))
        if overwrite:
            return
        if os.path.lexists(home / FILES["json"]):
            found = f"{home} already holds a verdict{whose(home / FILES['json'])}"
            raise InputError(f"{found}; use another directory (--output) or --overwrite")
        for name in FILES.values():
            if os.path.lexists(home / name):
                raise InputError(f"{home / name}: is there already; use another directory (--output) or --overwrite")
