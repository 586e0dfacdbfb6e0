"""`noisescope smooth`: outlier channels made smaller without changing the function, as a model of its own.

$ noisescope smooth -o smoothed
no model given: using SmolLM2-135M-Instruct
SmolLM2-135M-Instruct, int8 weights and int8 activations: 112 of 120 groups smoothed

layer  group                                    alpha  outliers       error
   12  input_layernorm -> q_proj k_proj v_proj    0.8  24.6x -> 2.0x  5.6% -> 1.1%
...
same function: logits moved by at most 8e-05 over 682 tokens; they spread by 3.2, and rounding may move them by 0.0004
Model: smoothed   open it with AutoModelForCausalLM.from_pretrained("smoothed")
next: noisescope diagnose smoothed --level channel
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..errors import printable
from ..specs.checks import number, optional, text
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
from .run_directory import program, refuse_place
from .screen import show

__all__ = ["smooth"]

_CHECKS = {"alpha": optional(number(least=0, most=1)), "weights": text, "activations": text}
_FIELDS = ("alpha", "weights", "activations", "data", "calibration_samples", "batch_size", "max_length", "seed")
"""what errors of the library may begin with"""


def smooth(
    context: typer.Context,
    model: ModelName = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Directory of the new model.", metavar="<path>")
    ] = "noisescope-smoothed",
    alpha: Annotated[
        float | None,
        typer.Option(help="0 leaves all to the activations, 1 to the weights; none: the best for each group."),
    ] = None,
    weights: Annotated[str, typer.Option(help="Format that errors of weights are measured in.")] = "int8",
    activations: Annotated[
        str, typer.Option(help="Format of activations: int8 has a scale for each token, int8:tensor one for all.")
    ] = "int8",
    powers_of_two: Annotated[
        bool | None,
        typer.Option(
            "--powers-of-two/--no-powers-of-two",
            help="Scale by powers of two, which rounds nothing; none: where weights have 16 bits.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Text, JSONL or parquet file, FILE:FIELD, or a dataset's name; none: a built-in text."),
    ] = None,
    calibration_samples: Annotated[int, typer.Option(help="Samples of it.")] = 50,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows that run together.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the data.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a smoothed model that is there.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every group on the screen.")] = False,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    attn: Attention = None,
    tokenizer: Tokenizer = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Make outlier channels smaller, with the same function: SmoothQuant scaling, folded into the weights."""
    checked_flags(context, _CHECKS)
    home = Path(output)
    with interruptible():
        say_which_model(model)
        from ..measure.sources import require_file
        from ..smoothing import smooth as run
        from ..smoothing.saving import refuse

        refuse_place(home, [])
        refuse(home, overwrite=overwrite)
        if data is not None:
            flag("--data", require_file, data)
        loaded = load_model(
            model, dtype=dtype, device=device, attn=attn, tokenizer=tokenizer, trust_remote_code=trust_remote_code
        )
        with flags_named(_FIELDS, context), bars() as progress:
            found = run(
                loaded.model,
                data,
                tokenizer=loaded.tokenizer,
                alpha=alpha,
                weights=weights,
                activations=activations,
                powers_of_two=powers_of_two,
                calibration_samples=calibration_samples,
                batch_size=batch_size,
                max_length=max_length,
                seed=seed,
                blocks=blocks,
                name=loaded.name,
                inplace=True,  # nobody else has this model
                progress=progress,
            )
        found.save(home, tokenizer=loaded.tokenizer, overwrite=overwrite)
    next_step = f"{program()} {shlex.join(['diagnose', str(home), '--level', 'channel'])}"
    summary = "".join(f"{printable(line)}\n" for line in found.summary(verbose=verbose).splitlines())
    show(
        f"{summary}Model: {printable(str(home))}   open it with "
        f"{printable(f'AutoModelForCausalLM.from_pretrained({str(home)!r})')}\nnext: {printable(next_step)}\n"
    )
    return 0
