"""`noisescope compare`: two traces, site by site, judged by the noise floor; of three and more, the odd one out.

$ noisescope compare gpu.trace npu.trace
same model, same tokens; differs: device (cuda -> npu), torch (2.13 -> 2.12)
first divergence   model.layers.9.self_attn.softmax.0.forward   SQNR 31 dB, noise floor 52 dB
 layer   added by itself   inherited   gain   MAPE    verdict
 L9      0.0042            0           -      1.9 %   SOURCE
 L10     0.0001            0.0042      1.1    2.1 %   amplifies
fix first: L9 softmax (divergence x sensitivity is 61 % of the total)
Report: noisescope-compare/comparison.html

The exit code is the verdict: 0 within the noise floor, 10 diverges, 11 inconclusive.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, printable
from ..report.divergence import FILES
from ..report.vote import FILES as VOTE_FILES
from ..store.files import store_errors
from .flags import flag
from .interrupts import interruptible
from .run_directory import refuse_place
from .screen import show

if TYPE_CHECKING:
    from ..comparing import Comparison, Vote
    from ..report import Report

__all__ = ["NamesFile", "compare"]

NamesFile = Annotated[
    str | None,
    typer.Option(
        "--map", help="JSON file: modules of the other traces -> what the first calls them.", metavar="<file>"
    ),
]


def compare(
    traces: Annotated[list[str], typer.Argument(help="The reference, then the suspect; three and more vote.")],
    names: NamesFile = None,
    report: Annotated[
        str | None, typer.Option(help="A report of `diagnose`, to rank what to fix first.", metavar="<path>")
    ] = None,
    output: Annotated[str, typer.Option(help="Directory of the comparison.", metavar="<path>")] = "noisescope-compare",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a comparison that is there.")] = False,
) -> int:
    """Compare the traces of two devices: the first divergent operator, and which layer caused the error."""
    home = Path(output)
    files = FILES if len(traces) == 2 else VOTE_FILES
    if len(traces) < 2:
        raise InputError("compare: got one trace, expected the reference and a suspect")
    _refuse(home, files, overwrite=overwrite)
    with interruptible():
        diagnosis = flag("--report", _report, report) if report is not None else None
        found = _voted(traces, names, diagnosis) if len(traces) > 2 else _compared(traces, names, diagnosis)
        show("".join(f"{printable(line)}\n" for line in str(found).splitlines()))
        page = found.save(home)
    show(f"Report: {printable(str(page))}\n")
    return found.exit_code


def _compared(traces: list[str], names: str | None, diagnosis: "Report | None") -> "Comparison":
    from ..comparing import compare as run

    return run(*traces, names=names, report=diagnosis)


def _voted(traces: list[str], names: str | None, diagnosis: "Report | None") -> "Vote":
    if diagnosis is not None:
        raise InputError("--report: ranks the layers of two traces; leave it out of a vote")
    from ..comparing import compare_many

    return compare_many(traces, names=names)


def _report(path: str) -> "Report":
    from ..report import Report

    home = Path(path)
    return Report.load(home / "report.json" if home.is_dir() else home)


def _refuse(home: Path, files: Mapping[str, str], *, overwrite: bool) -> None:
    with store_errors(home):
        refuse_place(home, list(files.values()))
        for name in files.values():
            if not overwrite and os.path.lexists(home / name):
                raise InputError(f"{home / name}: is there already; use another directory (--output) or --overwrite")
