"""`noisescope plan fix`: the fewest weights to raise in precision so that the KL meets a target.

$ noisescope plan fix noisescope-out --format mxfp4 --max-kl 0.05
Raise 5 of 120 groups of weights from mxfp4 to bf16: KL 0.0471 [0.0452, 0.0491] nats per token, within 0.05.
...
Plan: noisescope-fix/fix.html

Exit code 1 if raising all weights does not meet it.
"""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import printable
from ...report.fix import FILES
from ...specs.checks import Check, number, optional, text, whole
from ..bars import bars
from ..flags import checked_flags, flags_named
from ..interrupts import interruptible
from ..loading import Blocks, TrustRemoteCode
from ..screen import show
from .precision import MAP_FILE
from .subject import Model, Overwrite, ReportPath, Subject, refuse_files
from .subject_model import load_subject

__all__ = ["fix"]

_CHECKS: dict[str, Check] = {
    "max_kl": number(above=0),
    "n_samples": whole(16),
    "n_verified": whole(8),
    "device": optional(text),
    "format": text,
}


def fix(
    context: typer.Context,
    report: ReportPath,
    max_kl: Annotated[float, typer.Option(help="Nats per token that the formats may cost.")],
    format: Annotated[
        str, typer.Option(help="What all weights are in, such as mxfp4, int8/int8 (with activations) or W8A8.")
    ] = "mxfp4",
    raised: Annotated[str, typer.Option(help="What those that mind it get instead.")] = "bf16",
    model: Model = None,
    data: Annotated[str | None, typer.Option(help="Text to plan and measure on; none: that of the report.")] = None,
    n_samples: Annotated[int, typer.Option(help="Rows for the map.")] = 192,
    n_verified: Annotated[int, typer.Option(help="Rows that every step is run on.")] = 96,
    batch_size: Annotated[int, typer.Option(help="Rows that run together.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    seed: Annotated[int, typer.Option(help="Of rows and labels.")] = 0,
    device: Annotated[str | None, typer.Option(help="A torch device; none: that of the report.")] = None,
    attn: Annotated[str | None, typer.Option(help="Attention implementation; none: that of the report.")] = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
    output: Annotated[str, typer.Option(help="Directory of the plan.", metavar="<path>")] = "noisescope-fix",
    overwrite: Overwrite = False,
) -> int:
    """Find the fewest weights to raise in precision so that the KL meets a target; every step is run."""
    checked_flags(context, _CHECKS)
    home = Path(output)
    refuse_files(home, FILES.values(), overwrite=overwrite)
    with interruptible(), flags_named(("max_kl", "format", "raised", "data", "max_length"), context):
        subject = Subject.open(report, model=model, data=data)
        loaded = load_subject(subject, device=device, attn=attn, trust_remote_code=trust_remote_code)
        from ...planning.fixing import plan_fix

        with bars() as progress:
            plan = plan_fix(
                loaded.model,
                subject.data,
                format=format,
                raised=raised,
                max_kl=max_kl,
                tokenizer=loaded.tokenizer,
                n_samples=n_samples,
                n_verified=n_verified,
                batch_size=batch_size,
                max_length=max_length,
                seed=seed,
                blocks=blocks,
                name=loaded.name,
                map_file=home / MAP_FILE,
                progress=progress,
            )
        show("".join(f"{printable(line)}\n" for line in str(plan).splitlines()))
        page = plan.save(home)
    show(f"Plan: {printable(str(page))}\n")
    return 0 if plan.met else 1
