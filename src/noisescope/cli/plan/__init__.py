"""`noisescope plan`: what to do about what a report found; one file a subcommand, one line each here.

$ noisescope plan migration noisescope-out
Validate L5, head first: 2 layers of 11.
...
$ noisescope plan fault-tests noisescope-out
operator-1  bit_flip  softmax  critical operator
...
"""

import typer

from ..screen import write
from . import fault_tests, fix, migration, precision

__all__ = ["app"]

app = typer.Typer()


@app.callback(invoke_without_command=True)
def plan(context: typer.Context) -> None:
    """Turn a report into a plan: a migration, number formats, a minimal fix, tests of faults."""
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")


app.command("migration")(migration.migration)
app.command("precision")(precision.precision)
app.command("fix")(fix.fix)
app.command("fault-tests")(fault_tests.fault_tests)
