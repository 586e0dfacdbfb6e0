"""`noisescope plan precision`: which weights go into which number format, within so many bits, verified.

$ noisescope plan precision noisescope-out --avg-bits 5
5.00 bits on average: KL 0.0164 [0.0152, 0.0178] nats per token, measured.
That is 35.5% of the KL of the best single format within them, nvfp4 (4.50 bits).
...
Plan: noisescope-precision/precision.html
"""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError, printable
from ...report.precision import FILES
from ...specs import known
from ...specs.checks import Check, number, optional, text, whole
from ..bars import bars
from ..flags import checked_flags, flag, flags_named
from ..interrupts import interruptible
from ..loading import Blocks, TrustRemoteCode
from ..screen import show
from .subject import Model, Overwrite, ReportPath, Subject, refuse_files
from .subject_model import load_subject

__all__ = ["MAP_FILE", "precision"]

MAP_FILE, EXPORTS = "format-map.json", "exports"
_CHECKS: dict[str, Check] = {
    "avg_bits": number(above=0, most=32.0),
    "n_samples": whole(16),
    "n_verified": whole(8),
    "device": optional(text),
}


def precision(
    context: typer.Context,
    report: ReportPath,
    avg_bits: Annotated[float, typer.Option(help="Bits of a weight on average, scales counted, at most.")] = 6.0,
    formats: Annotated[
        str, typer.Option(help="To choose from, with commas or blanks between; int4:group=32 has options.")
    ] = ",".join(known.PLANNED),
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Modules that stay in 16 bit: a glob or re:... of paths; may be repeated."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="programme: the least KL; threshold: the documented rule.", metavar="<name>")
    ] = "programme",
    model: Model = None,
    data: Annotated[str | None, typer.Option(help="Text to plan and verify on; none: that of the report.")] = None,
    n_samples: Annotated[int, typer.Option(help="Rows for the map.")] = 384,
    n_verified: Annotated[int, typer.Option(help="Rows to verify on.")] = 96,
    batch_size: Annotated[int, typer.Option(help="Rows that run together.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    seed: Annotated[int, typer.Option(help="Of rows, labels and checks.")] = 0,
    device: Annotated[str | None, typer.Option(help="A torch device; none: that of the report.")] = None,
    attn: Annotated[str | None, typer.Option(help="Attention implementation; none: that of the report.")] = None,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
    output: Annotated[str, typer.Option(help="Directory of the plan.", metavar="<path>")] = "noisescope-precision",
    overwrite: Overwrite = False,
) -> int:
    """Choose a number format for each weight, the least KL within so many bits, and verify it by running."""
    checked_flags(context, _CHECKS)
    home = Path(output)
    refuse_files(home, FILES.values(), overwrite=overwrite)
    if strategy not in known.STRATEGIES:
        raise InputError(f'--strategy: got "{strategy}", expected one of {" ".join(known.STRATEGIES)}')
    with interruptible(), flags_named(("avg_bits", "formats", "keep", "strategy", "data", "max_length"), context):
        names = flag("--formats", split_formats, formats)
        from ...planning.exports import EXPORTS as TOOLS
        from ...planning.exports import exports

        refuse_files(home / EXPORTS, (tool.file for tool in TOOLS.values()), overwrite=overwrite)
        subject = Subject.open(report, model=model, data=data)
        loaded = load_subject(subject, device=device, attn=attn, trust_remote_code=trust_remote_code)
        from ...planning.degradation import degradation_of
        from ...planning.precision import plan_precision

        with bars() as progress:
            plan = plan_precision(
                loaded.model,
                subject.data,
                avg_bits=avg_bits,
                formats=names,
                keep=tuple(keep or ()),
                strategy=strategy,
                degradation=degradation_of(subject.report),
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
        found = exports(plan.sections)
        found.save(home / EXPORTS)
    show(f"exports  {' '.join(one.tool for one in found.made) or 'none'}, in {printable(str(home / EXPORTS))}\n")
    show("".join(f" not {tool}: {printable(why)}\n" for tool, why in found.refused.items()))
    show(f"Plan: {printable(str(page))}\n")
    return 0


def split_formats(given: str) -> list[str]:
    """Names of formats; a comma that belongs to the options of one stays in it, as in int4:group=32,asymmetric."""
    from ...noise.formats import FORMATS as KNOWN
    from ...noise.formats import parse_format

    found: list[str] = []
    for part in given.replace(" ", ",").split(","):
        if part and found and part.partition(":")[0] not in KNOWN and ":" in found[-1]:
            found[-1] = f"{found[-1]},{part}"
        elif part:
            found.append(part)
    return [str(parse_format(name)) for name in found]
