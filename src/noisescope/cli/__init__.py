"""The command line: parse, call, exit code; nothing else.

Errors that noisescope raises on purpose become one line on stderr for each thing that is wrong, and their exit code; a
usage error is 2, an interrupt 130. Anything else is a bug and keeps its traceback.
"""

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from .. import __version__
from ..errors import NoisescopeError
from . import diagnose, models, report, sites

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
app.command("report")(report.report)
app.command("sites")(sites.sites)
app.add_typer(models.app, name="models")

_UsageError = typer.BadParameter.__mro__[1]


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
    try:
        command = typer.main.get_command(app)
        code = command.main(given or ["--help"], prog_name="noisescope", standalone_mode=False, obj=tuple(given))
    except NoisescopeError as error:
        return _say(error.problems, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _say(["interrupted"], 130)
    except Exception as error:
        if isinstance(error, _UsageError):
            return _say([error.format_message()], 2)  # type: ignore[attr-defined]
        raise
    return code if isinstance(code, int) else 0


def _say(problems: Iterable[str], exit_code: int) -> int:
    for problem in problems:
        sys.stderr.write(f"noisescope: {' '.join(problem.split())}\n")
    return exit_code
