"""`noisescope plan migration`: which layers need which precision and which check on other hardware.

$ noisescope plan migration noisescope-out --compare noisescope-compare
Validate L3, L5, head first: 3 layers of 11.
...
validate with
 noisescope trace -o reference.trace  # on the device that is trusted
 ...
Plan: noisescope-plan/migration.html
"""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import printable
from ...report.migration import FILES
from ..flags import flag
from ..interrupts import interruptible
from ..run_directory import program
from ..screen import show
from .subject import Model, Overwrite, ReportPath, Subject, refuse_files

__all__ = ["migration"]


def migration(
    report: ReportPath,
    compare: Annotated[
        str | None,
        typer.Option(help="What `compare` found between the two devices: its directory or JSON.", metavar="<path>"),
    ] = None,
    model: Model = None,
    output: Annotated[str, typer.Option(help="Directory of the plan.", metavar="<path>")] = "noisescope-plan",
    overwrite: Overwrite = False,
) -> int:
    """Rank the layers by the risk of a move, and print the commands that validate it."""
    home = Path(output)
    refuse_files(home, FILES.values(), overwrite=overwrite)
    with interruptible():
        subject = Subject.open(report, model=model)
        from ...planning import Naming, plan_migration
        from ...report.divergence import load_comparison

        compared = flag("--compare", load_comparison, compare) if compare is not None else None
        plan = plan_migration(subject.report, compared)
        called = subject.model if subject.is_named else None
        naming = Naming.of(subject.report, model=called, path=report, program=program())
        show("".join(f"{printable(line)}\n" for line in str(plan.named(naming)).splitlines()))
        page = plan.named(Naming.of(subject.report, model=called, path=report, shared=True)).save(home)
    show(f"Plan: {printable(str(page))}\n")
    return 0
