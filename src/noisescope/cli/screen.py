"""What a person sees of a diagnosis or a verdict on the screen; in colour on a terminal that wants it."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import StoreError, printable
from .run_directory import RunDirectory, peak_bytes

if TYPE_CHECKING:
    from ..diagnosis.commands import Commands
    from ..report import Report

__all__ = ["said", "show", "show_report", "write"]

_STYLES = {
    r"\b(CRITICAL|FAILED|FAULTY)\b": "bold red",
    r"\bHIGH\b": "red",
    r"\b(MODERATE|MEDIUM|INCONCLUSIVE)\b": "yellow",
    r"\b(LOW|HEALTHY)\b": "green",
    r"(?m)^(Risk: .*?\))|^(Report: .*)$": "bold",
    r"(?m)^ ( +where it is fragile.*)$|^(what to do|next)$": "bold",
}


def said(message: str) -> None:
    """A word on the side, to standard error."""
    sys.stderr.write(printable(message) + "\n")


def show_report(report: "Report", home: RunDirectory, commands: "Commands", *, verbose: bool) -> None:
    """The summary, what it cost, and where the report is; what to run next is named as this person types it."""
    from ..report import Report

    sections = report.sections
    config, where, layers, found = (
        sections[name] for name in ("config", "environment", "coverage", "executive_summary")
    )
    given = config["data"]
    minutes, seconds = divmod(round(home.wall_s), 60)
    took = f"took {minutes} min {seconds} s" + (f", {peak / 1e9:.1f} GB at most" if (peak := peak_bytes()) else "")
    steps = commands.next_steps(found["critical_operators"], found["avalanche_points"])
    summary = Report({**sections, "next_steps": steps}).summary(verbose=verbose)
    show(
        f"model  {printable(config['model'])}, {layers['layers']} layers, "
        f"{where['parameters'] / 1e6:.1f} M parameters, {where['dtype']} on {where['device']}\n"
        f"data   {printable(given['name'])}, {given['rows']} rows of up to {given['longest_row']} tokens, "
        f"{given['task']}\n\n"
        f"{summary}\n\n{took}\nReport: {printable(str(home.path / 'report.html'))}\n"
    )


def show(text: str) -> None:
    """To standard output, in colour where that is wanted."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        text = _coloured(text)
    write(text)


def write(text: str) -> None:
    """To standard output; characters that its encoding lacks as escapes.

    What the system refuses is one line; a reader that has seen enough and left (`| head`) is no error.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):  # what is left in the buffer has nowhere to go when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise StoreError(f"cannot write to standard output: {error.strerror or error}") from None


def _coloured(text: str) -> str:
    from rich.console import Console
    from rich.text import Text

    painted = Text(text, end="")
    for pattern, style in _STYLES.items():
        painted.highlight_regex(pattern, style)
    console = Console(force_terminal=True)
    with console.capture() as shown:
        console.print(painted, end="", soft_wrap=True)
    return shown.get()
