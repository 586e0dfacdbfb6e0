"""`noisescope trace`: records what the model's operators give on this device, to be compared with another's.

$ noisescope trace -o cpu.trace
no model given: using SmolLM2-135M-Instruct
SmolLM2-135M-Instruct, 30 layers, float32 on cpu: 393 sites, passes of 8x128 tokens
Trace: cpu.trace   5.3 MB; all values would take 1380 MB
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, printable
from ..specs.checks import optional, text, whole
from ..store.files import store_errors
from .bars import bars
from .flags import checked_flags, flag, flags_named, is_typed
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
from .run_directory import refuse_place
from .screen import show

if TYPE_CHECKING:
    from ..traces import Trace

__all__ = ["trace"]

_CHECKS = {
    "sites": optional(text),
    "decode": whole(0),
    "n_samples": optional(whole(1)),
    "batch_size": whole(1),
    "max_length": optional(whole(1)),
}
_FIELDS = (
    *("sites", "decode", "backward", "inputs", "inputs_from", "data", "seed", "blocks", "emulate"),
    *("n_samples", "max_length", "batch_size"),
)
"""what errors of the library may begin with"""


def trace(
    context: typer.Context,
    model: ModelName = None,
    output: Annotated[str, typer.Option("--output", "-o", help="The file to write.")] = "noisescope.trace",
    sites: Annotated[
        str | None, typer.Option(help='Only these: a pattern of modules or sites, such as "*.mlp.*" or "*.softmax".')
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Keep whole values too, to compare exactly.")] = False,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Keep the hidden states between layers, for --inputs-from.")
    ] = False,
    inputs_from: Annotated[
        str | None,
        typer.Option(
            help="A reference made with --inputs: also run with its input given to every layer, on its tokens."
        ),
    ] = None,
    outputs_only: Annotated[bool, typer.Option("--outputs-only", help="Record the logits alone.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="Record gradients too.")] = False,
    decode: Annotated[int, typer.Option(help="Tokens at the end of each row that are computed one by one.")] = 0,
    floor: Annotated[bool, typer.Option(help="Measure the noise floor; a reference needs one.")] = True,
    emulate: Annotated[
        list[str] | None,
        typer.Option(
            help="Run as another device would, or with a fault; repeatable. Such as tf32, exp_table@3 or "
            "saturation:0.2@15.linear.",
            metavar="<device[@place]>",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Text, JSONL or parquet file; none: a built-in text, or that of --inputs-from.")
    ] = None,
    n_samples: Annotated[int | None, typer.Option(help="Rows of the data; none: 8, of outputs alone 2.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row; none: 128, of outputs alone 32.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows that run together.")] = 8,
    seed: Annotated[int, typer.Option(help="Of data and sketches; the same for all traces to compare.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    attn: Attention = None,
    tokenizer: Tokenizer = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Record what the operators of a model give on this device, in one small file."""
    checked_flags(context, _CHECKS)
    file = Path(output)
    _refuse(file, overwrite=overwrite)

    with interruptible():
        say_which_model(model)
        from ..devices import parse_device
        from ..measure.sources import require_file
        from ..traces import load_trace
        from ..traces import trace as run

        if data is not None:
            flag("--data", require_file, data)
        for name in (
            ("decode", "n_samples", "max_length", "batch_size") if inputs_from is not None and data is None else ()
        ):
            if is_typed(name, context):
                typed = f"--{name.replace('_', '-')}"
                raise InputError(f"{typed}: tokens and stages are those of --inputs-from; leave it out")
        for given in emulate or ():
            flag("--emulate", lambda one: parse_device(one, seed=seed), given)
        reference = flag("--inputs-from", load_trace, inputs_from) if inputs_from is not None else None
        loaded = load_model(
            model, dtype=dtype, device=device, attn=attn, tokenizer=tokenizer, trust_remote_code=trust_remote_code
        )
        with flags_named(_FIELDS, context), bars() as progress:
            found = run(
                loaded.model,
                data,
                tokenizer=loaded.tokenizer,
                sites=sites,
                full=full,
                inputs=inputs,
                inputs_from=reference,
                outputs_only=outputs_only,
                backward=backward,
                decode=decode,
                floor=floor,
                emulate=emulate or (),
                n_samples=n_samples,
                max_length=max_length,
                batch_size=batch_size,
                checkpoint=loaded.digest,
                blocks=blocks,
                seed=seed,
                name=loaded.name,
                progress=progress,
            )
        _refuse(file, overwrite=overwrite)
        found.save(file)
    show(_told(found, file))
    return 0


def _told(found: "Trace", file: Path) -> str:
    whole_bytes = sum(site.whole_bytes for site in found.sites if site.run == "free")
    size = f"{_written(file.stat().st_size)}; all values would take {_written(whole_bytes)}"
    return f"{printable(str(found))}\nTrace: {printable(str(file))}   {size}\n"


def _written(size_bytes: int) -> str:
    """Two figures at least: 640 bytes, 7.5 kB, 210 kB, 5.3 MB, 1380 MB."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    number, unit = (size_bytes / 1e3, "kB") if size_bytes < 999_500 else (size_bytes / 1e6, "MB")
    return f"{number:.{1 if number < 9.95 else 0}f} {unit}"


def _refuse(file: Path, *, overwrite: bool) -> None:
    """Raises for a file that could not be written at the end, or that must not be."""
    with store_errors(file):
        refuse_place(file.parent, [file.name])
        if os.path.lexists(file) and not overwrite:
            raise InputError(f"{file}: is there already; use another name (--output) or --overwrite")
