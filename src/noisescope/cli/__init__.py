"""The command line: parse, call, exit code; nothing else.

Errors that noisescope raises on purpose become one line on stderr for each thing that is wrong, and their exit code; a
usage error is 2, an interrupt 130. Anything else is a bug and keeps its traceback. Nothing in a message acts on a
terminal, and a reader of the output that has left is no error.
"""

import os
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from .. import __version__
from ..errors import NoisescopeError, printable
from . import check, compare, diagnose, locate, models, plan, report, sites, smooth, trace, validate_migration

__all__ = ["app", "main"]

app = typer.Typer(
    name="noisescope",
    help="An oscilloscope for the numerics of language models.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("diagnose")(diagnose.diagnose)
app.command("locate")(locate.locate)
app.command("trace")(trace.trace)
app.command("compare")(compare.compare)
app.command("validate-migration")(validate_migration.validate_migration)
app.add_typer(plan.app, name="plan")
app.command("check")(check.check)
app.command("smooth")(smooth.smooth)
app.command("report")(report.report)
app.command("sites")(sites.sites)
app.add_typer(models.app, name="models")

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"noisescope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options that come before the verb."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and gives its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    _replace_closed_streams()
    try:
        return _run(given)
    except NoisescopeError as error:
        return _say(error.problems, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _say(["interrupted"], 130)
    except _UsageError as error:
        return _say([error.format_message()], 2)  # type: ignore[attr-defined]
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # how typer takes leave of a reader that has left
            return 0
        raise


def _run(given: list[str]) -> int:
    command = typer.main.get_command(app)
    code = command.main(given or ["--help"], prog_name="noisescope", standalone_mode=False, obj=tuple(given))
    return code if isinstance(code, int) else 0


def _replace_closed_streams() -> None:
    """Who closes a stream (`>&-`) wants nothing on it; its number must not be given to a file of ours."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def _say(problems: Iterable[str], exit_code: int) -> int:
    for problem in problems:
        sys.stderr.write(f"noisescope: {printable(' '.join(problem.split()))}\n")
    return exit_code
