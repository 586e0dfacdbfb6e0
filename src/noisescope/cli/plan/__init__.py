"""`noisescope plan`: what to do about what a report found; one file a subcommand, one line each here.

$ noisescope plan migration noisescope-out
Validate L5, head first: 2 layers of 11.
...
$ noisescope plan fault-tests noisescope-out
operator-1  bit_flip  softmax  critical operator
...
"""

import typer

from . import fault_tests, migration

__all__ = ["app"]

app = typer.Typer(help="Turn a report into a plan: a migration, tests of faults.", no_args_is_help=True)
app.command("migration")(migration.migration)
app.command("fault-tests")(fault_tests.fault_tests)
