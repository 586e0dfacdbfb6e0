"""`noisescope plan`: what to do about what a report found; one file a subcommand, one line each here.

$ noisescope plan migration noisescope-out
Validate L5, head first: 2 layers of 11.
...
$ noisescope plan fault-tests noisescope-out
6 cases: ...
"""

import typer

from . import migration

__all__ = ["app"]

app = typer.Typer(help="Turn a report into a plan: a migration, tests of faults.", no_args_is_help=True)
app.command("migration")(migration.migration)
