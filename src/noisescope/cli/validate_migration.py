"""`noisescope validate-migration`: the gate of a move to other hardware.

$ noisescope validate-migration gpu.trace npu.trace --layers 9-11 --max-mape 0.05
ok     layer 9: mape 0.019 [0.017, 0.021], at most 0.05 at model.layers.9.residual.1.forward
FAILED layer 10: mape 0.081 [0.074, 0.089], at most 0.05 at model.layers.10.residual.1.forward
1 of 2 limits exceeded

Exit code 0 if all limits hold, 1 if not.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from .. import store
from ..errors import InputError, printable
from ..specs import parse_layers
from ..specs.checks import number, optional
from ..store.files import store_errors
from .compare import NamesFile
from .flags import checked_flags, flags_named
from .interrupts import interruptible
from .run_directory import refuse_place
from .screen import show

__all__ = ["validate_migration"]

_CHECKS = {
    **dict.fromkeys(("max_mape", "max_mae", "max_error"), optional(number(least=0))),
    "min_cosine": optional(number(least=-1, most=1)),
    "min_sqnr": optional(number(least=-1000)),
    "layers": parse_layers,
}


def validate_migration(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(help="Trace of the device that is trusted.")],
    suspect: Annotated[str, typer.Argument(help="Trace of the other.")],
    layers: Annotated[str | None, typer.Option(help='Such as "9-11,head"; none: all.')] = None,
    max_mape: Annotated[
        float | None, typer.Option(help="Mean percentage error at most, as a share; none: 0.05.")
    ] = None,
    max_mae: Annotated[float | None, typer.Option(help="Mean abs error at most.")] = None,
    max_error: Annotated[float | None, typer.Option(help="Relative error at most.")] = None,
    min_cosine: Annotated[float | None, typer.Option(help="Cosine at least.")] = None,
    min_sqnr: Annotated[float | None, typer.Option(help="SQNR at least, in dB.")] = None,
    names: NamesFile = None,
    junit: Annotated[str | None, typer.Option(help="Also write JUnit XML there.", metavar="<file>")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a JUnit file that is there.")] = False,
) -> int:
    """Check that the layers of a suspect are as near to the reference's as you ask for."""
    checked_flags(context, _CHECKS)
    with store_errors(Path(junit or ".")):
        if junit is not None:
            refuse_place(Path(junit).parent, [Path(junit).name])
            if os.path.lexists(junit) and not overwrite:
                raise InputError(f"--junit: {junit} is there already; use another name or --overwrite")
    given = {
        "mape": max_mape,
        "mae": max_mae,
        "relative_error": max_error,
        "cosine": min_cosine,
        "sqnr_db": min_sqnr,
    }
    limits = {name: limit for name, limit in given.items() if limit is not None}
    with interruptible(), flags_named(("layers",), context):
        from ..comparing import validate_migration as run

        gate = run(reference, suspect, layers=layers, limits=limits or None, names=names)
        show("".join(f"{printable(line)}\n" for line in str(gate).splitlines()))
        if junit is not None:
            store.make_directory(Path(junit).parent)
            store.atomic_write(Path(junit), gate.to_junit().encode())
    return gate.exit_code
