"""What a person sees of a diagnosis on the screen; in colour on a terminal that wants it."""

import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .run_directory import RunDirectory, peak_bytes, program

if TYPE_CHECKING:
    from ..report import Report

__all__ = ["said", "show", "show_report"]

_STYLES = {
    r"\b(CRITICAL|FAILED)\b": "bold red",
    r"\bHIGH\b": "red",
    r"\b(MODERATE|MEDIUM)\b": "yellow",
    r"\bLOW\b": "green",
    r"(?m)^(Risk: .*?\))|^(Report: .*)$": "bold",
    r"(?m)^ ( +where it is fragile.*)$|^(what to do|next)$": "bold",
}


def said(message: str) -> None:
    """A word on the side, to standard error."""
    sys.stderr.write(message + "\n")


def show_report(
    report: "Report", home: RunDirectory, *, model: str | None, data: str | None, wall_s: float, verbose: bool
) -> None:
    """The summary, what it cost, and where the report is; model and data are what the person called them."""
    config, where, layers = (report.sections[name] for name in ("config", "environment", "coverage"))
    given = config["data"]
    minutes, seconds = divmod(round(wall_s), 60)
    took = f"took {minutes} min {seconds} s" + (f", {peak / 1e9:.1f} GB at most" if (peak := peak_bytes()) else "")
    names = {"noisescope-out": str(home.path), config["model"]: model, given["name"]: data}
    summary = _as_typed(report.summary(verbose=verbose), {name: typed for name, typed in names.items() if typed})
    show(
        f"model  {config['model']}, {layers['layers']} layers, {where['parameters'] / 1e6:.1f} M parameters, "
        f"{where['dtype']} on {where['device']}\n"
        f"data   {given['name']}, {given['rows']} rows of up to {given['longest_row']} tokens, {given['task']}\n\n"
        f"{summary}\n\n{took}\nReport: {home.path / 'report.html'}\n"
    )


def _as_typed(summary: str, words: Mapping[str, str]) -> str:
    """The commands of a summary with what this person types in place of the names that reports use."""
    return "\n".join(
        _command(line, words) if line.startswith(" noisescope ") else line for line in summary.splitlines()
    )


def _command(line: str, words: Mapping[str, str]) -> str:
    command, _, why = line.partition("  # ")
    _, *given = shlex.split(command)
    return f" {program()} {shlex.join(words.get(word, word) for word in given)}  # {why.strip()}"


def show(text: str) -> None:
    """To standard output; characters that its encoding lacks as escapes, colours only where they are wanted."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        text = _coloured(text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


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
